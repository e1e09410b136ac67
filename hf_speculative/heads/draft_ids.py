"""Draft vocabularies that are a part of the target's: draft token d is the target's d + d2t[d]."""

import torch
from torch import Tensor


def wrong_reason(d2t: Tensor, vocab_size: int) -> str | None:
    """Why `d2t` is no map from draft tokens to the `vocab_size` tokens of a target; `None` if it is one."""
    if d2t.is_floating_point() or d2t.ndim != 1:
        return f"of type {str(d2t.dtype).removeprefix('torch.')} is no list of ids"
    ids = of_target(d2t)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return f"leads to the token ids {int(ids.min())} to {int(ids.max())}, and the target has 0 to {vocab_size - 1}"
    if len(ids.unique()) < len(ids):
        return f"leads {len(ids) - len(ids.unique())} draft tokens to target tokens that others stand for already"
    return None


def of_target(d2t: Tensor) -> Tensor:
    """The target's ids of all draft tokens: `(draft vocabulary,)`."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def over_target(logits: Tensor, d2t: Tensor, vocab_size: int) -> Tensor:
    """`logits (..., draft vocabulary)` by the target's ids: `(..., vocab_size)`, -inf where there is no draft token."""
    full = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return full.index_copy(-1, of_target(d2t).to(logits.device), logits)


def members(d2t: Tensor, vocab_size: int) -> Tensor:
    """Which of the target's tokens are draft tokens: `(vocab_size,)` bool, called t2d in files."""
    found = torch.zeros(vocab_size, dtype=torch.bool)
    found[of_target(d2t)] = True
    return found
