"""The exact distribution through `generate`, one model of each family that the ragged path cannot hold."""

import pytest

import hf_speculative as hs
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.distributions import NEW, assert_all_found, exact_distribution
from tests.support.enumeration import enumerate_texts

#: encoder and decoder, hybrid, recurrent, ALiBi, vision
CASES = [
    ("seq2seq", "bart"),
    *(("causal", one) for one in ("qwen3_next", "mamba2", "gpt_neo")),
    ("image-text", "llava"),
]


@pytest.mark.parametrize(("mapping", "model_type"), CASES)
def test_sampling_has_the_targets_distribution(mapping, model_type):
    model = build(mapping, model_type)
    draft, one = tiny.noisy_copy(model, noise=0.15), prompts(mapping, model, 1)
    settings = {"temperature": 1.5, "top_k": 3}
    if hasattr(model.config, "image_token_id"):  # a fresh forward would look for an image
        settings["suppress_tokens"] = [model.config.image_token_id]

    options = settings | {"num_draft_tokens": 3, "do_sample": True, "max_new_tokens": NEW, "pad_token_id": 0}

    def call(rows):
        inputs = {name: value.repeat_interleave(len(rows), 0) for name, value in one.items()}
        return [tuple(row) for row in hs.generate(model, **inputs, **options, draft_model=draft)[:, -NEW:].tolist()]

    with hs.record() as stats:
        (found,) = enumerate_texts(call, 1)
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    if model.config.is_encoder_decoder:
        start = [model.generation_config.decoder_start_token_id]
    else:
        start = one.pop("input_ids")[0].tolist()
        one.pop("attention_mask", None)
    assert_all_found(found, exact_distribution(model, start, others=one, **settings))
