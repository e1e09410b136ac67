"""Rounds of a model with its cache, held against passes over each row alone."""

import torch

import hf_speculative as hs
from hf_speculative.models import RaggedModel
from hf_speculative.models.execution import EAGER, Execution, ragged_model
from hf_speculative.types import Batch
from tests.support import tiny


def begun(model, num_rows: int = 4, width: int = 7, max_length: int = 60, execution: Execution = EAGER):
    """Rows of unequal length, and how to continue them at random: `random(high, *shape)`."""
    inputs = tiny.prompts(num_rows, width, vocab_size=model.config.vocab_size)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch = Batch(inputs["input_ids"], padding, max_length=max_length)
    cached = ragged_model(model, execution=execution)
    generator = torch.Generator().manual_seed(0)
    return batch, cached, lambda high, *shape: torch.randint(0, high, shape, generator=generator)


def assert_fresh(model, batch, cached, k: int, at_once: bool = True, rtol: float = 1e-3, atol: float = 2e-4) -> None:
    """Logits after the newest token and k draft tokens are those of one pass over each row alone.

    Else a token at a time, and the last one not at all, as a draft model reads its own.
    """
    if at_once:
        found = cached.logits(batch, ahead=k, num_last=k + 1)
    else:
        found = torch.cat([cached.logits(batch, ahead, num_last=1) for ahead in range(k)], 1)
    for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
        fresh = model(batch.tokens[row : row + 1, pad : length + k]).logits[0, -k - 1 :][: found.shape[1]]
        torch.testing.assert_close(found[row], fresh, rtol=rtol, atol=atol)


def append(batch, proposal, accepted, next_token) -> None:
    draft = hs.Draft(proposal, None, torch.full_like(batch.lengths, proposal.shape[1]))
    batch.append(draft, hs.Verdict(accepted, next_token))


@torch.no_grad()
def check_rounds(model, execution: Execution = EAGER, **tolerance) -> RaggedModel:
    """Random accept counts a row, drafts fed at once and a token at a time, a row that leaves, one that comes."""
    batch, cached, random = begun(model, execution=execution)
    vocab_size = model.config.vocab_size
    cached.prefill(batch)
    for round in range(7):
        k = round % 4
        proposal = 1 + random(vocab_size - 1, len(batch.rows), k)
        batch.put(proposal)
        assert_fresh(model, batch, cached, k, round % 2 == 0, **tolerance)
        append(batch, proposal, random(k + 1, len(batch.rows)), 1 + random(vocab_size - 1, len(batch.rows)))
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2, 3])
        if round == 5:
            newcomers = Batch(1 + random(vocab_size - 1, 1, 7), [1], max_length=60)
            batch.admit(newcomers, [1])
            cached.admit(newcomers, [1])
    return cached
