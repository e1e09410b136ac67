"""The ragged cache: what it holds equals a fresh forward, after every round, for every kind of attention."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import RaggedModel
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


def test_dropout_of_a_model_in_training_mode_does_not_reach_the_draft(target):
    model = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    draft = tiny.noisy_copy(model, noise=0).train()
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(1), draft_model=draft, max_new_tokens=20, do_sample=False)
    assert stats.draft_acceptance_rate == 1 and draft.training
