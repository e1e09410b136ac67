"""The draft with which a batch is expected to be done first, by measured cost and past acceptance: nothing, a chain or a tree.

Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8, without its assumption that all tokens are alike: a round of g draft
tokens brings a row 1 + s_1 + ... + s_g tokens, s_i the probability that the first i are kept, and takes the time that was
measured for it. All rows share that time, so one length is chosen for all. What counts is when the last row is done.

A tree's s_i are those of its levels. How many of its nodes are proposed is decided once the draft has said how confident it is
of each (`best_nodes.py`).

Where no draft seems to pay, one is tried on credit: a text may become predictable, and costs may be other than assumed. The
decision depends on earlier rounds only, what they took included, so the output stays exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .acceptance import PRIOR_RATE, Acceptance, Floats
from .best_nodes import BestNodes

#: plain steps that drafts may lose at first: enough for a few tries
CREDIT = 2.0
#: and the most that they may lose of what they have won, so that good texts do not pay for a long row of bad ones
MOST_CREDIT = 4.0
#: plain steps that they may lose in each round from then on: one percent is not felt
CREDIT_A_ROUND = 0.01
#: the share of broken chains that a tree is taken to go on from, until one was tried: half, as nobody knows
RESCUED = 0.5

#: chains among which it chooses: costs of few lengths are known soon, and between them little is lost
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


class Adaptive(Schedule):
    """The draft with which all rows are expected to be done first, none included.

    Args:
        max_tokens: the longest chain.
        costs: of rounds. Default: those that calls of this kind have measured. With given costs, lengths do not depend on the
            clock.
        max_nodes, max_levels: the largest tree; without nodes, drafts are chains.

    Raises:
        ValueError: `max_tokens` is below 1.
    """

    def __init__(self, max_tokens: int = 16, costs: Costs | None = None, max_nodes: int = 0, max_levels: int = 8):
        if max_tokens < 1:
            raise ValueError(f"`max_tokens={max_tokens}` drafts nothing: give 1 or more.")
        self.max_tokens, self.costs, self.max_nodes = max_tokens, costs, max_nodes
        self.chains, self.trees = Acceptance(max_tokens), Acceptance(max_levels, _rescued(PRIOR_RATE))
        self.nodes = BestNodes(max_nodes) if max_nodes else None
        self.levels, self.credit, self.has_drafted = 0, CREDIT, False
        self.times: dict[tuple[int, int], Floats] = {}

    @property
    def learned(self) -> tuple[Acceptance, Acceptance, float]:  # type: ignore[override]
        """What was accepted, in chains and in trees, and the credit that is left."""
        return self.chains, self.trees, self.credit

    @learned.setter
    def learned(self, learned: object) -> None:
        self.chains, self.trees, self.credit = cast(tuple[Acceptance, Acceptance, float], learned)
        self.chains.rows, self.trees.rows = {}, {}

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.update_costs(self.costs or costs())

    def update_costs(self, costs: Costs) -> None:
        self.costs, self.times = costs, {}

    def plan(self, batch: Batch) -> list[int]:
        self.levels, rooms = 0, batch.rooms
        longest = min(self.max_tokens, max(rooms))
        if batch.is_unread or not longest:
            return [0] * len(rooms)
        gains = _gains(self.chains.of_rows(batch.rows), rooms, longest)
        times = self._times(len(rooms), 0)[:, : longest + 1]
        if self.nodes is not None and batch.grows_levels and self._costs.trees:
            of_levels = _gains(self.trees.of_rows(batch.rows), rooms, longest)[:, 1:]
            gains = np.concatenate([gains, of_levels], 1)
            trees = self._times(len(rooms), self.nodes.last)
            times = np.concatenate([times, trees[:, : of_levels.shape[1]]], 1)
        best = self._best(gains, times, batch, longest)
        self.speed = float(gains[:, best].sum() / times[-1, best])
        if best <= longest:
            return [min(best, room) for room in rooms]
        self.levels = best - longest
        return [min(self.max_nodes, room) for room in self.rooms(batch)]

    def _best(self, gains: Floats, times: Floats, batch: Batch, longest: int) -> int:
        """Which of the ways to go on ends the batch first: nothing, a chain of up to `longest` tokens, a tree of some levels.

        Args:
            gains, times: `(rows, ways)`: tokens of a round; its time with 1, 2, ... rows.
        """
        left, plain = np.maximum(1.0, batch.max_length - np.array(batch.host_lengths)), float(times[-1, 0])
        if batch.refills:  # rows that wait take the lanes of those that are done: all tokens count alike
            seconds = left.sum() / gains.sum(0) * times[-1]
        else:
            rounds = np.sort(np.maximum(1.0, left[:, None] / gains), 0)
            seconds = (np.diff(rounds, axis=0, prepend=0) * times[::-1]).sum(0)  # of as many rows as are left
        if not self.has_drafted:  # the draft reads the prompts
            seconds[1:] += max(0.0, float(times[-1, 1]) - plain)
        ways = np.arange(len(seconds))
        seconds[~np.isin(ways, LENGTHS) & (ways < longest)] = np.inf
        best = 1 + int(seconds[1:].argmin())
        can_pay = 1 + np.where(ways > longest, ways - longest, ways) > times[-1] / plain
        if seconds[best] < seconds[0] or (self.credit > 0 and can_pay[1:].any()):
            self.reason = None
            return best
        cost, gain = times[-1, best] / plain, gains[:, best].mean()
        self.reason = f"a round with the best draft takes {cost:.1f} plain steps and brings about {gain:.1f} tokens"
        return 0

    def num_levels(self, batch: Batch) -> int | None:
        return None if self.nodes is None else self.levels

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        if self.nodes is None or not self.levels:  # a chain and guesses beside it, as many as were planned
            return super().num_nodes(batch, chances)
        return self.nodes.best(chances, self._costs.tree_curve(len(chances), self.levels, self.max_nodes))

    def update(self, round: Round) -> None:
        self.credit = min(self.credit + CREDIT_A_ROUND, MOST_CREDIT)
        width, num_rows = max(round.num_drafted), len(round.rows)
        if not width:
            return
        self.has_drafted = True
        kept = {
            row: self._of_levels(chances) if self.levels else [*chances, 0.0][:num]
            for row, chances, num in zip(round.rows, round.acceptance_prob, round.num_drafted, strict=True)
            if num
        }
        (self.trees if self.levels else self.chains).add(kept)
        if self.levels and self.nodes is not None:
            self.nodes.update(round)
        levels = self.levels
        curve = self._costs.tree_curve(num_rows, levels, width) if levels else self._costs.curve(num_rows, width)
        gain = min(map(sum, kept.values()))  # the slowest row ends the batch
        self.credit = min(self.credit + 1 + gain - curve[width] / self._costs.curve(num_rows, 0)[0], MOST_CREDIT)

    def _of_levels(self, path: list[float]) -> list[float]:
        """A tree's levels, of which the `path` was kept."""
        return ([1.0] * len(path) + [0.0])[: self.levels]

    @property
    def _costs(self) -> Costs:
        assert self.costs is not None  # `begin` comes before the first plan
        return self.costs

    def _times(self, num_rows: int, num_nodes: int) -> Floats:
        """`(num_rows, ways)`, of 1, 2, ... rows: with chains of 0, 1, ... tokens, or so many nodes on 1, 2, ... levels."""
        if (num_rows, num_nodes) not in self.times:
            costs, sizes, levels = self._costs, range(1, num_rows + 1), range(1, len(self.trees.kept) + 1)
            self.times[num_rows, num_nodes] = np.array(
                [[costs.tree_curve(size, n, num_nodes)[-1] for n in levels] for size in sizes]
                if num_nodes
                else [costs.curve(size, self.max_tokens) for size in sizes]
            )
        return self.times[num_rows, num_nodes]


def _gains(kept: Floats, rooms: list[int], longest: int) -> Floats:
    """`(rows, longest + 1)`: tokens that a round brings each row, with drafts of 0, 1, ... tokens, as far as it has room.

    Args:
        kept: of `Acceptance.of_rows`.
    """
    longest = min(longest, kept.shape[1])
    within = np.where(np.arange(longest) < np.array(rooms)[:, None], kept[:, :longest], 0.0)
    return 1 + np.concatenate([np.zeros((len(rooms), 1)), within.cumsum(1)], 1)


def _rescued(rate: float) -> float:
    return rate + (1 - rate) * RESCUED
