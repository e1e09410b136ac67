"""The ragged cache: what it holds equals a fresh forward, after every round, for every kind of attention."""

import inspect

import pytest
import tiny
import torch
from architectures.check import build
from transformers import AutoConfig, AutoModelForCausalLM

import hf_speculative as hs
from hf_speculative.models import RaggedModel, choose, probe
from hf_speculative.models.probe import TESTED_TYPES, fits_ragged
from hf_speculative.types import Batch


def test_the_tested_types_are_tested():
    assert set(tiny.ARCHITECTURES) == TESTED_TYPES


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type, attention):
    """Random accept counts per row, rows leaving, past a window of 8."""
    model = tiny.build(model_type, attention=attention)
    inputs = tiny.prompts(4)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch, cached = Batch(inputs["input_ids"], padding, max_length=40), RaggedModel(model)
    generator = torch.Generator().manual_seed(0)
    cached.prefill(batch)
    for round in range(6):
        k = int(torch.randint(0, 4, (1,), generator=generator))
        proposal = torch.randint(1, tiny.VOCAB, (len(batch.rows), k), generator=generator)
        batch.put(proposal)
        found = cached.logits(batch, ahead=k, num_last=k + 1)
        for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
            fresh = model(batch.tokens[row : row + 1, pad : length + k]).logits[0, -k - 1 :]
            torch.testing.assert_close(found[row], fresh, rtol=1e-4, atol=1e-4)
        accepted = torch.randint(0, k + 1, (len(batch.rows),), generator=generator)
        draft = hs.Draft(proposal, None, torch.full_like(batch.lengths, k))
        batch.append(draft, hs.Verdict(accepted, torch.randint(1, tiny.VOCAB, (len(batch.rows),), generator=generator)))
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2, 3])


@torch.no_grad()
def test_capacity_grows_without_losing_anything(monkeypatch):
    monkeypatch.setattr("hf_speculative.models.ragged_cache.MAX_AHEAD", 2)
    model = tiny.llama()
    inputs = tiny.prompts(3)
    found = hs.generate(
        model, **inputs, draft_model=tiny.noisy_copy(model), max_new_tokens=80, do_sample=False, pad_token_id=0
    )
    assert found.tolist() == model.generate(**inputs, max_new_tokens=80, do_sample=False, pad_token_id=0).tolist()


UNKNOWN_BUT_FITTING = {
    "helium": tiny.GATED | {"head_dim": 8},
    "smollm3": tiny.GATED,
    "nemotron": tiny.GATED,
}


@pytest.mark.parametrize("model_type", UNKNOWN_BUT_FITTING)
def test_a_type_the_tests_do_not_cover_is_tried_once(model_type, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **UNKNOWN_BUT_FITTING[model_type])).eval()
    assert model_type not in TESTED_TYPES and fits_ragged(model)
    monkeypatch.setattr(probe, "_deviation_of_ragged", lambda *args: pytest.fail("asked twice"))
    assert fits_ragged(model)
    inputs = tiny.prompts(2)
    found = hs.generate(model, **inputs, draft_model=model, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert found.tolist() == model.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=0).tolist()


def test_the_probe_sees_wrong_logits(monkeypatch):
    """Its own negative control: with wrong positions for several tokens on top of a cache, a model that fits does not pass."""
    model = tiny.llama()
    monkeypatch.setattr(probe, "TESTED_TYPES", frozenset())
    original = model.forward

    def shifted(*args, position_ids, past_key_values, **kwargs):
        is_verifying = position_ids.shape[1] > 1 and past_key_values.get_seq_length() > 0
        return original(
            *args, position_ids=position_ids // (1 + is_verifying), past_key_values=past_key_values, **kwargs
        )

    shifted.__signature__ = inspect.signature(original)
    assert fits_ragged(tiny.llama())
    monkeypatch.setattr(model, "forward", shifted)
    assert not fits_ragged(model)
    assert choose(model).name == "universal" and "other logits" in choose(model).reason


def test_the_probe_compares_with_what_plain_generate_feeds():
    """Kosmos-2.5 takes positions, but its `prepare_inputs_for_generation` leaves them to the model, which shifts them."""
    model = build("image-text", "kosmos-2.5")
    assert "position_ids" in inspect.signature(model.forward).parameters and choose(model).name == "universal"
    for inputs in (tiny.prompts(1), tiny.prompts(3)):
        settings = inputs | {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        found = hs.generate(model, **settings, draft_model=tiny.noisy_copy(model))
        assert found.tolist() == model.generate(**settings).tolist()


def test_dropout_of_a_model_in_training_mode_does_not_reach_the_draft(target):
    model = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    draft = tiny.noisy_copy(model, noise=0).train()
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(1), draft_model=draft, max_new_tokens=20, do_sample=False)
    assert stats.draft_acceptance_rate == 1 and draft.training
