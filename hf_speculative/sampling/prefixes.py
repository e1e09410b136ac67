"""What stands before each position of a pass: a row's own tokens, then the draft tokens on the way there."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ..types import NO_TOKEN, Batch, Tree


class Prefixes:
    """The prefixes of the positions `[first, first + num_positions)` of each row.

    Position 0 follows the row's own tokens, position i the first i draft tokens beyond; in a `tree`, node i - 1 and the path to
    it.
    """

    def __init__(self, batch: Batch, num_positions: int, first: int = 0, tree: Tree | None = None):
        self.batch, self.num_positions, self.first, self.tree = batch, num_positions, first, tree

    def at(self, position: int) -> Prefixes:
        """Those of one position, counted from `first`."""
        return Prefixes(self.batch, 1, self.first + position, self.tree)

    @cached_property
    def widths(self) -> Tensor:
        """`(batch, num_positions)` int64, the columns of each prefix."""
        places = torch.arange(self.first, self.first + self.num_positions, device=self.batch.lengths.device)
        return self.batch.lengths[:, None] + (places if self.tree is None else self.tree.depths[:, places])

    def host_widths(self) -> list[list[int]]:
        """The same as lists; asks the device for the depths of a tree."""
        places = range(self.first, self.first + self.num_positions)
        if self.tree is None:
            return [[length + place for place in places] for length in self.batch.host_lengths]
        rows = zip(self.batch.host_lengths, self.tree.host_depths, strict=True)
        return [[length + depths[place] for place in places] for length, depths in rows]

    @property
    def shortest(self) -> int:
        """No prefix has fewer columns, as far as the host knows without asking."""
        return min(self.batch.host_lengths) + (self.first if self.tree is None else min(self.first, 1))

    @property
    def longest(self) -> int:
        """No prefix has more columns, likewise."""
        last = self.first + self.num_positions - 1
        return max(self.batch.host_lengths) + (last if self.tree is None else min(last, self.tree.depth))

    def last(self, num_tokens: int, start: int | Tensor = 0) -> Tensor:
        """`(batch, num_positions, num_tokens)` the last tokens of each prefix.

        `NO_TOKEN` where a prefix is shorter, and before column `start`, a number or `(batch, 1, 1)`.
        """
        batch, tree = self.batch, self.tree
        columns = self.widths[..., None] + torch.arange(-num_tokens, 0, device=batch.tokens.device)
        places = columns.clamp(min=0)
        if tree is not None:  # all nodes stand behind the row's own tokens; a prefix has those of its path only
            lengths = batch.lengths[:, None, None]
            nodes = torch.arange(self.first, self.first + self.num_positions, device=columns.device) - 1
            on_path = (columns - lengths).clamp(0, tree.depth - 1)
            of_path = lengths + tree.paths[:, nodes.clamp(min=0)].gather(2, on_path)
            places = places.where(columns < lengths, of_path)
        tokens = batch.tokens.gather(1, places.flatten(1)).view_as(places)
        return tokens.where(columns >= start, NO_TOKEN)
