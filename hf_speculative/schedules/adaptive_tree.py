"""Chains or trees of a drafter that pays for each level: whichever ends the batch first.

How long a chain, how deep a tree and which of them is decided before anything is drafted, as in `adaptive.py`: by measured
costs and by what came of earlier rounds. How many of a tree's nodes are proposed is decided once the draft has said how
confident it is of each, as in `best_nodes.py`. Neither depends on chance, so that the output stays exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .adaptive import PRIOR_RATE, PRIOR_WEIGHT, Adaptive, expected_tokens
from .best_nodes import BestNodes

#: where a chain breaks, a tree is taken to know the token all the same in this share of cases, until it was tried
RESCUED = 0.5
#: after so many rounds of the one kind, the other one is judged by what it might bring at best
PATIENCE = 32
#: nodes that are expected to be proposed before any were, and what a tree leaves of that expectation
FIRST_NODES, MEMORY = 8.0, 0.9


class AdaptiveTree(Schedule):
    """Each round the chain or the tree with which all rows are expected to be done first, or nothing.

    A tree is kept at least as far as a chain, and each of its levels takes a pass over more columns. The one that was not used
    of late is taken to be as good as it can be: a chain as good as trees were, a tree to know what follows where half of the
    chains broke. So it is tried where it might pay, and there only.

    Args:
        max_tokens: the longest chain.
        max_nodes, max_levels: the largest tree.
        costs: of rounds; by default those that are measured. Without `Costs.trees`, drafts are chains.
    """

    def __init__(self, max_tokens: int = 16, max_nodes: int = 64, max_levels: int = 8, costs: Costs | None = None):
        self.costs, self.max_tokens, self.max_nodes = costs, max_tokens, max_nodes
        self.chains, self.trees = Adaptive(max_tokens, costs), Adaptive(max_levels, costs)
        self.trees.all_rows.kept[0] = PRIOR_WEIGHT * (PRIOR_RATE + (1 - PRIOR_RATE) * RESCUED)
        self.nodes = BestNodes(max_nodes, costs)
        self.typical = min(FIRST_NODES, float(max_nodes))
        self.levels = 0
        self.rounds_since_chain, self.rounds_since_tree = 0, PATIENCE
        self.curves: dict[tuple[int, int], list[float]] = {}

    @property
    def learned(self) -> object:  # type: ignore[override]
        """Of chains: what is known of them says what trees may bring, until one was tried."""
        return self.chains.learned

    @learned.setter
    def learned(self, learned: object) -> None:
        self.chains.learned = learned

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        return self.chains.reason

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.chains.begin(batch, costs)
        self.costs = self.chains.costs

    def update_costs(self, costs: Costs) -> None:
        for kind in (self.chains, self.trees, self.nodes):
            kind.update_costs(costs)
        self.costs, self.curves = costs, {}

    def plan(self, batch: Batch) -> list[int]:
        self.levels, self.speed, rooms = 0, 0.0, batch.rooms
        if batch.is_unread or not any(rooms) or self.chains.rests(batch):
            return [0] * len(rooms)
        for kind in (self.chains, self.trees):
            kind.see(batch)
        longest = min(self.chains.max_tokens, max(rooms))
        acceptance_probs = self._acceptance_probs(
            batch, self.chains, self.trees, self.rounds_since_chain, lambda kept: kept
        )
        gains = expected_tokens(acceptance_probs, rooms, longest)
        length, seconds = self.chains.choose(gains)
        self.speed = float(gains[:, length].sum() / self.chains.times_of(len(rooms))[-1, length])
        if batch.grows_levels and self._costs.trees:
            self.levels = self._levels_below(seconds, batch, rooms)
        if self.levels:
            return [min(self.max_nodes, room) for room in self.rooms(batch)]
        if not length:
            self.chains.rest(batch)
        return [min(length, room) for room in rooms]

    def _levels_below(self, seconds: float, batch: Batch, rooms: list[int]) -> int:
        """How many levels the tree has that ends the batch first; 0 if it takes no less than `seconds`."""
        deepest, nodes = min(self.trees.max_tokens, max(rooms)), round(self.typical)
        acceptance_probs = self._acceptance_probs(batch, self.trees, self.chains, self.rounds_since_tree, _rescued)
        gains = expected_tokens(acceptance_probs, rooms, deepest)[:, 1:]
        plain = self.chains.times_of(len(rooms))[:, :1]
        of_all_rows = np.array([self._times(len(rooms), n)[nodes] for n in range(1, deepest + 1)])
        times = of_all_rows * plain / plain[-1]  # of fewer rows in proportion to a plain step
        needed = self.trees.remaining.seconds(gains, times) + self.chains.seconds_to_begin(len(rooms))
        best = int(needed.argmin())
        if needed[best] >= seconds:
            return 0
        self.speed = float(gains[:, best].sum() / times[-1, best])
        return 1 + best

    @staticmethod
    def _acceptance_probs(
        batch: Batch, own: Adaptive, other: Adaptive, num_rounds: int, at_best: Callable[[float], float]
    ) -> list[list[float]]:
        """The chances of each row's first, second, ... token or level: by its `own` kind, or by what the `other` one says."""
        if num_rounds < PATIENCE:
            return [own.acceptance_prob(row) for row in batch.rows]
        return [_by_other(other.acceptance_prob(row), own.max_tokens, at_best) for row in batch.rows]

    def num_levels(self, batch: Batch) -> int:
        return self.levels

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        if not self.levels:  # a chain and guesses beside it, as many as were planned
            return super().num_nodes(batch, chances)
        counts = self.nodes.best(chances, self._times(len(chances), self.levels))
        self.typical = max(1.0, MEMORY * self.typical + (1 - MEMORY) * max(counts))
        return counts

    def update(self, round: Round) -> None:
        if not self.levels:
            self.chains.update(_as_chains(round))
            if any(round.num_drafted):
                self.rounds_since_chain, self.rounds_since_tree = 0, self.rounds_since_tree + 1
            return
        self.rounds_since_chain, self.rounds_since_tree = self.rounds_since_chain + 1, 0
        self.nodes.update(round)
        kept = {
            row: len(acceptance_prob) for row, acceptance_prob in zip(round.rows, round.acceptance_prob, strict=True)
        }
        self.trees.learn({row: ([1.0] * num + [0.0])[: self.levels] for row, num in kept.items()})
        seconds = self._times(len(round.rows), self.levels)[max(round.num_drafted)]
        self.chains.earn([1.0 + kept[row] for row in round.rows], seconds)

    @property
    def _costs(self) -> Costs:
        assert self.costs is not None  # `begin` comes before the first plan
        return self.costs

    def _times(self, batch_size: int, num_levels: int) -> list[float]:
        """Times of rounds with trees of 0, 1, ... nodes."""
        key = (batch_size, num_levels)
        if key not in self.curves:
            self.curves[key] = self._costs.tree_curve(*key, self.max_nodes)
        return self.curves[key]


def _as_chains(round: Round) -> Round:
    """A round whose chains may have had guesses beside them: the path that was kept is the chain then."""
    drafts = zip(round.num_drafted, round.acceptance_prob, strict=True)
    return replace(round, acceptance_prob=[[*chances, 0.0][:num] for num, chances in drafts])


def _rescued(kept: float) -> float:
    return kept + (1 - kept) * RESCUED


def _by_other(acceptance_prob: list[float], longest: int, at_best: Callable[[float], float]) -> list[float]:
    """Chances of the one kind from those of the other; beyond the longest of these, as at its end."""
    shares = [
        after / before if before else 0.0
        for before, after in zip([1.0, *acceptance_prob], acceptance_prob, strict=False)
    ]
    found, chance = [], 1.0
    for share in (shares + shares[-1:] * longest)[:longest]:
        chance *= at_best(share)
        found.append(chance)
    return found
