"""The exact law through `generate`, one model of each family that the ragged path cannot hold."""

import pytest
import tiny
import torch
from architectures.check import build, prompts
from laws import assert_law

import hf_speculative as hs

NEW, TOP_K, TEMPERATURE = 4, 3, 1.5
#: mapping, type, samples: the reference code of gated delta nets is slow
FAMILIES = {
    "encoder-decoder": ("seq2seq", "bart", 8_320),
    "hybrid": ("causal", "qwen3_next", 2_080),
    "recurrent": ("causal", "mamba2", 4_160),
    "alibi": ("causal", "bloom", 8_320),
    "vision": ("image-text", "llava", 4_160),
}


def placeholders(model) -> list[int]:
    """Ids that stand for an image: a fresh forward would look for one."""
    return [model.config.image_token_id] if hasattr(model.config, "image_token_id") else []


@torch.no_grad()
def exact_law(model, inputs) -> dict[tuple, float]:
    """Every continuation's probability under temperature and top-k, from fresh forwards of the whole text."""
    law = {(): 1.0}
    start = (
        [[model.generation_config.decoder_start_token_id]] if model.config.is_encoder_decoder else inputs["input_ids"]
    )
    for _ in range(NEW):
        longer = {}
        for prefix, probability in law.items():
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
        law = longer
    return law


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_has_the_targets_law(family):
    mapping, model_type, num_samples = FAMILIES[family]
    model = build(mapping, model_type)
    one = prompts(mapping, model, 1)
    law = exact_law(model, one)
    many = {name: value.repeat_interleave(num_samples, 0) for name, value in one.items()}
    with hs.record() as stats:
        out = hs.generate(
            model,
            **many,
            draft_model=tiny.noisy_copy(model, noise=0.15),
            num_draft_tokens=3,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            suppress_tokens=placeholders(model) or None,
            max_new_tokens=NEW,
            pad_token_id=0,
        )
    assert 0.2 < stats.draft_acceptance_rate < 0.98
    assert_law([tuple(row) for row in out[:, -NEW:].tolist()], law)
