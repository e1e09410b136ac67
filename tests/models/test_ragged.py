"""The ragged cache: what it holds equals a fresh forward, after every round, for every kind of attention."""

import time

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import RaggedModel
from hf_speculative.models.ragged_cache import RaggedCache
from hf_speculative.models.verified_types import TESTED_TYPES
from hf_speculative.types import Batch
from tests.support import tiny


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


def test_dropout_of_a_model_in_training_mode_does_not_reach_the_draft(target):
    model = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    draft = tiny.noisy_copy(model, noise=0).train()
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(1), draft_model=draft, max_new_tokens=20, do_sample=False)
    assert stats.draft_acceptance_rate == 1 and draft.training


def test_writing_to_rows_of_their_own_takes_no_time_for_the_other_slots():
    """In half precision, torch's `scatter_` takes time for the whole cache on a CPU: 100 ms a layer at 8,192 slots."""

    def seconds(capacity: int) -> float:
        cache = RaggedCache([None])
        cache.reserve(2, capacity - 1, limit=capacity)
        states = torch.randn(2, 2, 3, 32, dtype=torch.bfloat16)
        cache.slots = torch.tensor([[4, 5, 6], [7, 8, 9]])
        layer = cache.layers[0]
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            layer.update(states, states)
            layer.move(cache.slots, cache.slots + 1)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert seconds(2**16) < 20 * seconds(2**7)
