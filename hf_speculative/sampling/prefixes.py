"""The prefix of each position of a pass: a row's own tokens, then the draft tokens on its path."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from ..types import NO_TOKEN, Batch, columns_from


class Prefixes:
    """The prefixes of the positions `[first, first + num_positions)` of each row.

    Position 0 follows the row's own tokens, position i the first i draft tokens beyond; in a `tree`, node i - 1 and the path to
    it.
    """

    #: of one position: the rows in which plain decoding may come to it, see `Reach`
    reached: list[bool]

    def __init__(self, batch: Batch, num_positions: int, first: int, is_draft: bool = False):
        self.batch, self.num_positions, self.first, self.tree = batch, num_positions, first, batch.tree
        self.is_draft = is_draft
        #: by lane and position: what a processor raised there
        self.errors: dict[tuple[int, int], Exception] = {}

    def at(self, position: int) -> Prefixes:
        """Those of one position, counted from `first`."""
        one = copy.copy(self)  # along with `host_paths`
        one.num_positions, one.first = 1, self.first + position
        vars(one).pop("widths", None)
        return one

    @cached_property
    def host_paths(self) -> list[list[tuple[int, ...]]]:
        """By row, the draft tokens on the way to each position, counted from 0; asks the device for them, once."""
        batch, num_tokens = self.batch, self.first + self.num_positions - 1
        drafted: list[list[int]] = [[]] * len(batch.rows)
        if num_tokens:
            drafted = batch.tokens.gather(1, columns_from(batch.lengths, num_tokens)).tolist()
        found = []
        for lane, tokens in enumerate(drafted):
            paths: list[tuple[int, ...]] = [()]
            for node, token in enumerate(tokens):
                paths.append((*paths[self.before(lane, node + 1)], token))
            found.append(paths)
        return found

    def before(self, lane: int, position: int) -> int:
        """The position, counted from 0, that comes before another one."""
        return position - 1 if self.tree is None else self.tree.host_parents[lane][position - 1] + 1

    @cached_property
    def widths(self) -> Tensor:
        """`(batch, num_positions)` int64, the columns of each prefix."""
        places = torch.arange(self.first, self.first + self.num_positions, device=self.batch.lengths.device)
        return self.batch.lengths[:, None] + (places if self.tree is None else self.tree.depths[:, places])

    @property
    def shortest(self) -> int:
        """No prefix has fewer columns, as far as the host knows without asking."""
        return min(self.batch.host_lengths) + (self.first if self.tree is None else min(self.first, 1))

    @property
    def longest(self) -> int:
        """No prefix has more columns, as far as the host knows without asking."""
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


class Reach:
    """The positions that plain decoding may come to: no token before is forbidden, none ends the row, and it is not full.

    At others a processor may know of nothing, or raise.
    """

    def __init__(self, prefixes: Prefixes):
        self.prefixes = prefixes
        self.found: list[list[bool]] = []

    def at(self, position: int, columns: list[Tensor]) -> list[bool]:
        """By row. Called for each position in turn; asks the device once.

        Args:
            columns: processed scores at the positions before, each `(batch, 1, vocab)`.
        """
        prefixes, batch = self.prefixes, self.prefixes.batch
        paths = [paths[prefixes.first + position] for paths in prefixes.host_paths]
        reached = [
            batch.ends.isdisjoint(path) and length + len(path) < batch.max_length
            for path, length in zip(paths, batch.host_lengths, strict=True)
        ]
        if position and not prefixes.first:  # what a draft looks at further ahead was drawn from what is allowed
            before = [prefixes.before(lane, position) for lane in range(len(paths))]
            scores = torch.stack([columns[p][lane, 0, paths[lane][-1]] for lane, p in enumerate(before)]).tolist()
            reached = [
                is_open and self.found[p][lane] and score > -torch.inf
                for lane, (is_open, p, score) in enumerate(zip(reached, before, scores, strict=True))
            ]
        self.found.append(reached)
        return reached
