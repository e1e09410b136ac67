"""Slots and positions of the columns of a pass in which each row feeds its own tokens."""

import torch
from torch import Tensor

from ..types import uploaded


def fed_slots(starts: list[int], ends: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The columns of a pass in which row b is fed its tokens from `starts[b]` to `ends[b]`.

    Returns:
        `(batch, widest)` int64 slots, rows ending in the last column, and `(batch, widest)` bool, those that are filler.
    """
    first, last = uploaded([starts, ends], device)
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    slots = last[:, None] + torch.arange(-width, 0, device=device)
    return slots, slots < first[:, None]


def fed_places(first: Tensor, seen: Tensor, bounds: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Positions and slots, each `(batch, width)`, of a pass's columns; arguments as of `ragged_pass`."""
    places = first[:, None] + torch.arange(width, device=first.device)
    is_filler = places < seen[:, None]
    return places.masked_fill(is_filler, 0), torch.where(is_filler, bounds[:, :1], places)


def in_rows(slots: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """An index of `slots (batch, n)` in their rows, for tensors `(batch, slots, ...)` on a `device`.

    Several times faster than `gather` and `scatter_` on a CPU, where the latter takes time for all slots in half precision.
    """
    return torch.arange(len(slots), device=device)[:, None], slots.to(device)
