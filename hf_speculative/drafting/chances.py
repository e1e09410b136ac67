"""Acceptance statistics of guesses by kind of evidence."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

#: weights, in guesses, of the prior of a kind, and of the rate of all rows as the prior of a row
PRIOR_WEIGHT, ROW_WEIGHT = 4.0, 8.0
#: the number of guesses of a kind beyond which old ones fade
MEMORY = 64.0


class Chances:
    """Shares of right guesses by kind, for all rows and for each.

    Args:
        prior: the share of a kind of which nothing was seen.
        of_all: what is known already, and goes on to be learned: right guesses and guesses of each kind.
    """

    def __init__(self, prior: Callable[[Any], float], of_all: dict[Hashable, list[float]]):
        self.prior, self.of_all = prior, of_all
        self.of_row: dict[int, dict[Hashable, list[float]]] = defaultdict(dict)

    def begin(self) -> None:
        """Another call: its rows are others."""
        self.of_row.clear()

    def forget_all_but(self, rows: Iterable[int]) -> None:
        """These rows alone go on: a server's call has no end."""
        for row in self.of_row.keys() - {*rows}:
            del self.of_row[row]

    def of(self, row: int, kind: Hashable) -> float:
        """The chance that a guess of this kind is right in this row of the call."""
        if kind not in self.of_all:
            self.of_all[kind] = [PRIOR_WEIGHT * self.prior(kind), PRIOR_WEIGHT]
        right, num = self.of_all[kind]
        own_right, own_num = self.of_row[row].get(kind, (0.0, 0.0))
        return (own_right + ROW_WEIGHT * right / num) / (own_num + ROW_WEIGHT)

    def add(self, row: int, kind: Hashable, is_right: bool) -> None:
        for counts in (self.of_all[kind], self.of_row[row].setdefault(kind, [0.0, 0.0])):
            counts[0] += is_right
            counts[1] += 1
            if counts[1] > MEMORY:
                counts[0] /= 2
                counts[1] /= 2
