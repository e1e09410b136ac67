"""Run a recurrence column by column, and keep its last states."""

import torch
from torch import Tensor


class Steps:
    """Several columns from a state.

    Args:
        state: `(batch, ...)` before the first column; later, after the last one.
        is_filler: `(batch, columns)` bool of columns that leave the state as it is; `None`: none.
        num_kept: the number of last states to keep in `states`.

    Attributes:
        heads: the states of heads that were run alone so far, if they are.
    """

    def __init__(self, state: Tensor, is_filler: Tensor | None = None, num_kept: int = 0):
        self.state, self.is_filler, self.num_kept = state, is_filler, num_kept
        self.states: list[Tensor] = []
        self.heads: list[list[Tensor]] = []
        self.num_columns = 0

    def advance(self, state: Tensor) -> Tensor:
        """Go on by a column whose state is `state`; returns the state after it, unchanged in rows of filler."""
        if self.is_filler is not None:
            state = unless(self.is_filler[:, self.num_columns], state, self.state)
        self.state, self.num_columns = state, self.num_columns + 1
        if self.num_kept:
            self.states.append(state)
            del self.states[: -self.num_kept]
        return state


def unless(is_filler: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new (batch, ...)`; `old` in rows `is_filler (batch,)`."""
    return torch.where(is_filler.to(new.device).view(-1, *[1] * (new.ndim - 1)), old.to(new.dtype), new)
