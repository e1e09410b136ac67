"""The exact distribution through `generate`, one model of each family that the ragged path cannot hold."""

import pytest
import torch

import hf_speculative as hs
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.distributions import assert_all_found
from tests.support.enumeration import enumerate_texts

NEW, TOP_K, TEMPERATURE = 4, 3, 1.5
FAMILIES = {
    "encoder-decoder": ("seq2seq", "bart"),
    "hybrid": ("causal", "qwen3_next"),
    "recurrent": ("causal", "mamba2"),
    "alibi": ("causal", "bloom"),
    "vision": ("image-text", "llava"),
}


def placeholders(model) -> list[int]:
    """Ids that stand for an image: a fresh forward would look for one."""
    return [model.config.image_token_id] if hasattr(model.config, "image_token_id") else []


@torch.no_grad()
def exact_distribution(model, inputs) -> dict[tuple, float]:
    """Every continuation's probability under temperature and top-k, from fresh forwards of the whole text."""
    distribution = {(): 1.0}
    start = (
        [[model.generation_config.decoder_start_token_id]] if model.config.is_encoder_decoder else inputs["input_ids"]
    )
    for _ in range(NEW):
        longer = {}
        for prefix, probability in distribution.items():
            ids = torch.cat([torch.as_tensor(start), torch.tensor([prefix], dtype=torch.long)], 1)
            given = (
                dict(inputs, decoder_input_ids=ids) if model.config.is_encoder_decoder else dict(inputs, input_ids=ids)
            )
            if not model.config.is_encoder_decoder:
                given["attention_mask"] = torch.ones_like(ids)
            scores = model(**given).logits[0, -1].float() / TEMPERATURE
            scores[placeholders(model)] = -torch.inf
            best = scores.topk(TOP_K)
            for token, weight in zip(best.indices.tolist(), best.values.softmax(0).double().tolist(), strict=True):
                longer[(*prefix, token)] = probability * weight
        distribution = longer
    return distribution


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_has_the_targets_distribution(family):
    mapping, model_type = FAMILIES[family]
    model = build(mapping, model_type)
    draft, one = tiny.noisy_copy(model, noise=0.15), prompts(mapping, model, 1)

    def call(rows):
        out = hs.generate(
            model,
            **{name: value.repeat_interleave(len(rows), 0) for name, value in one.items()},
            draft_model=draft,
            num_draft_tokens=3,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            suppress_tokens=placeholders(model) or None,
            max_new_tokens=NEW,
            pad_token_id=0,
        )
        return [tuple(row) for row in out[:, -NEW:].tolist()]

    with hs.record() as stats:
        (found,) = enumerate_texts(call, 1)
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert_all_found(found, exact_distribution(model, one))
