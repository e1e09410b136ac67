"""The ragged cache: what it holds equals a fresh forward, after every round, for every kind of attention."""

import pytest

import hf_speculative as hs
from hf_speculative.models import ragged_cache
from hf_speculative.models.places import in_rows
from hf_speculative.models.verified_types import TESTED_TYPES
from tests.support import tiny
from tests.support.rounds import check_rounds


def test_the_tested_types_are_tested():
    assert set(tiny.ARCHITECTURES) == TESTED_TYPES


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type, attention):
    """Past a window of 8 as well."""
    check_rounds(tiny.build(model_type, attention=attention), rtol=1e-4, atol=1e-4)


def test_the_index_of_slots_is_made_once_a_pass(target, monkeypatch):
    calls = []
    monkeypatch.setattr(ragged_cache, "in_rows", lambda *args: calls.append(args) or in_rows(*args))
    with hs.record() as stats:
        hs.generate(target, **tiny.prompts(3), draft_model="ngram", max_new_tokens=20, do_sample=False)
    assert 0 < len(calls) <= stats.num_target_forwards < len(calls) * target.config.num_hidden_layers


def test_dropout_of_a_model_in_training_mode_does_not_reach_the_draft(target):
    model = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    draft = tiny.noisy_copy(model, noise=0).train()
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(1), draft_model=draft, max_new_tokens=20, do_sample=False)
    assert stats.draft_acceptance_rate == 1 and draft.training
