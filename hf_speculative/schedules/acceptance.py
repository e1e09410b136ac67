"""What share of draft tokens is kept at each position: one discounted estimate for a pair, and how its rows differ from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: a share before any was seen: drafts that people use are right about as often (Leviathan et al. 2023, Table 3)
PRIOR_RATE = 0.7
#: draft tokens that an assumption counts as: a few rounds outweigh it
PRIOR_WEIGHT = 4.0
#: what a round leaves of the evidence before it: texts change within some 25 rounds
MEMORY = 0.96


class Acceptance:
    """Estimates, from the probabilities with which earlier draft tokens were kept, those of the next ones.

    Args:
        longest: positions of a draft, or levels of a tree.
        rate: the share that is assumed at first.
    """

    def __init__(self, longest: int, rate: float = PRIOR_RATE):
        self.reached, self.kept = np.zeros(longest), np.zeros(longest)
        self.reached[0], self.kept[0] = PRIOR_WEIGHT, PRIOR_WEIGHT * rate
        self.rows: dict[int, tuple[float, float]] = {}

    def add(self, acceptance_probs: dict[int, list[float]]) -> None:
        """One round: for each row, the probability that its first, first two, ... tokens are kept."""
        self.reached *= MEMORY
        self.kept *= MEMORY
        for row, kept in acceptance_probs.items():
            reached = np.array([1.0, *kept])[: len(kept)]
            self.reached[: len(kept)] += reached / len(acceptance_probs)
            self.kept[: len(kept)] += np.array(kept) / len(acceptance_probs)
            of_row = self.rows.get(row, (0.0, 0.0))
            self.rows[row] = MEMORY * of_row[0] + reached.sum(), MEMORY * of_row[1] + sum(kept)

    def shares(self) -> Floats:
        """`(longest,)`: of tokens whose predecessors are kept, the share that is, near the mean where few were seen."""
        rate = self.kept.sum() / self.reached.sum()
        return (self.kept + PRIOR_WEIGHT * rate) / (self.reached + PRIOR_WEIGHT)

    def of_rows(self, rows: list[int]) -> Floats:
        """`(rows, longest)`: the probability that a row's first, first two, ... tokens are kept."""
        rate = self.kept.sum() / self.reached.sum()
        seen = np.array([self.rows.get(row, (0.0, 0.0)) for row in rows])
        own = (seen[:, 1] + PRIOR_WEIGHT * rate) / (seen[:, 0] + PRIOR_WEIGHT)
        return np.minimum(1.0, self.shares() * (own / max(rate, 1e-9))[:, None]).cumprod(1)

    def forget_rows(self, but: list[int]) -> None:
        """A server's call has no end."""
        self.rows = {row: seen for row, seen in self.rows.items() if row in but}
