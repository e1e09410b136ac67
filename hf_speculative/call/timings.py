"""What is known of how long rounds take, what to time next, and whether there is time for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ..distributed.tensor_parallel import Alone
from ..types import Costs

#: each is timed until its two best times are as close as this
MAX_REPEATS, CLOSE = 6, 1.1
#: a draft may take so many times what its weights say
CAUTION = 2.0
#: drafts of more tokens are timed only where a round is expected to take at most so many plain steps
LONG, CHEAP = 16, 2.0

#: rows, and levels of the tree that is drafted, 0 for a chain
Shape = tuple[int, int]


class Timings:
    """Times of rounds of one batch size, by draft length; the best of each counts.

    Args:
        per_token: what a draft token adds, in plain steps, as long as none was timed.
        lengths: draft lengths to time, the most telling first, 0 among them.
        depth: draft tokens that can be kept of one draft, where its length counts the nodes of a tree.
        plain_of: plain steps are timed for these others, too.

    Attributes:
        can_grow: nothing has shown that rounds of this kind cannot be timed.
    """

    can_grow: bool = True

    def __init__(
        self, per_token: float, lengths: Sequence[int], depth: int | None = None, plain_of: Timings | None = None
    ):
        self.per_token, self.lengths, self.depth, self.chains = per_token, lengths, depth, plain_of
        self.samples: dict[int, list[float]] = {n: [] for n in lengths}
        if plain_of is not None:
            self.samples[0] = plain_of.samples[0]

    def best(self, without: int | None = None) -> dict[int, float]:
        """Seconds by draft length; in plain steps where nothing was timed. Drafting more cannot take less: that is noise.

        Args:
            without: a draft length whose own times do not count.
        """
        timed = {n: min(times) for n, times in self.samples.items() if times and n != without} or {0: 1.0}
        best = {n: min(seconds for wider, seconds in timed.items() if wider >= n) for n in sorted(timed)}
        return best if len(best) > 1 else best | {1: (1 + self.per_token) * best[0]}

    @property
    def plain_step(self) -> float:
        return self.best()[0]

    @property
    def are_measured(self) -> bool:
        return bool(self.samples[0])

    @property
    def are_measured_beyond_plain(self) -> bool:
        return any(times for n, times in self.samples.items() if n)

    def times_of(self, length: int) -> int:
        """How often rounds of a draft length were timed; a plain step, which all are compared with, once less."""
        return len(self.samples[length]) - (length == 0)

    def wanted(self, num_steps: float) -> int | None:
        """The most telling draft length to time within `num_steps` plain steps; `None` if none fits or all are settled.

        A plain step, which all the others are compared with, is timed once more than they are, and not alone.
        """
        fitting = [n for n in self.lengths if self._is_open(n) and self._expected_steps(n) <= num_steps]
        return min(fitting, key=self.times_of, default=None)

    def _is_open(self, length: int) -> bool:
        if self.samples[length]:
            fastest, *others = sorted(self.samples[length])
            return self.can_grow and len(others) + 1 < MAX_REPEATS and not (others and others[0] <= CLOSE * fastest)
        # What would not pay by the times of other lengths, its draft accepted whole, need not be known.
        if not self.can_grow or length == 0 or (length > LONG and not self._others(length)):
            return False
        most = 1 + min(length, self.depth or length) if length <= LONG else CHEAP
        return not self._others(length) or self._expected_steps(length) <= most

    def _expected_steps(self, length: int) -> float:
        """Plain steps of a round, by other lengths where they say less: its own times may be those of a bad moment."""
        if length == 0:
            return 1.0
        others = self.best(without=length)
        if self.depth is not None and (wider := [n for n in others if n > length]):
            others = {0: others[min(wider)]}  # the first node of a tree may cost as much as all of them
        by_others = Costs({1: others}).curve(1, length)[length] / self.plain_step
        if self.depth is not None and self.chains is not None and not self._others(length):
            chain = Costs({1: self.chains.best()}).curve(1, self.depth)[self.depth] / self.plain_step
            by_others = (
                max(by_others, chain + self.per_token * length) / CAUTION
            )  # a chain as long takes no more passes
        expected = by_others if self._others(length) else CAUTION * by_others
        return min([expected, *(seconds / self.plain_step for seconds in self.samples[length])])

    def _others(self, length: int) -> list[int]:
        """Other draft lengths that were timed."""
        return [n for n in self.lengths if n not in (0, length) and self.samples[n]]


class Known(dict[Shape, Timings]):
    """What is known of one kind of call.

    Attributes:
        saved: plain steps that measuring may still take, of those that calls asked for.
    """

    saved: float = 0.0


def costs_of(known: Mapping[Shape, Timings]) -> Costs:
    """What is known, or assumed as long as nothing was measured."""
    chains = {num_rows: timings for (num_rows, num_levels), timings in known.items() if num_levels == 0}
    rounds = {num_rows: timings.best() for num_rows, timings in chains.items() if timings.are_measured}
    trees: dict[int, dict[int, dict[int, float]]] = {}
    for (num_rows, num_levels), timings in known.items():
        if num_levels and timings.are_measured_beyond_plain:
            times = {n: seconds for n, seconds in timings.best().items() if n}
            trees.setdefault(num_rows, {})[num_levels] = times
    return Costs(
        rounds or {num_rows: timings.best() for num_rows, timings in chains.items()},
        {num_rows: by_levels for num_rows, by_levels in trees.items() if len(by_levels) > 1},
    )


class Budget:
    """What is left of the time for measuring, by the clock of the first of `ranks`, all of which have to measure alike.

    Args:
        num_steps: the whole of it, in plain steps.
    """

    def __init__(self, num_steps: float, ranks: Alone):
        self.num_steps, self.ranks, self.spent = num_steps, ranks, 0.0
        self.last = self._now()

    def _now(self) -> float:
        return self.ranks.number(time.perf_counter())

    def lap(self, is_spent: bool = True) -> float:
        """Seconds since the last lap."""
        last, self.last = self.last, self._now()
        seconds = self.last - last
        self.spent += seconds * is_spent
        return seconds

    def left(self, plain_step: float) -> float:
        """In plain steps of so many seconds."""
        return self.num_steps - self.spent / plain_step
