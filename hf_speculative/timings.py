"""What is known of how long rounds take, what to time next, and whether there is time for it."""

from __future__ import annotations

import time

from .agreement import Alone
from .lookahead import Costs

#: draft lengths that are timed, the most telling first; what lies between them and beyond is interpolated
LENGTHS = (4, 1, 0, 8, 2)
#: each is timed until its two best times are as close as this
MAX_REPEATS, CLOSE = 6, 1.1
#: what was never timed may take so many times what it is expected to
CAUTION = 2.0


class Timings:
    """Times of rounds of one batch size, by draft length; the best of each counts.

    Args:
        per_token: what a draft token adds, in plain steps, as long as none was timed.

    Attributes:
        can_grow: nothing has shown that rounds of this kind cannot be timed.
    """

    can_grow: bool = True

    def __init__(self, per_token: float):
        self.per_token = per_token
        self.samples: dict[int, list[float]] = {n: [] for n in LENGTHS}

    def best(self) -> dict[int, float]:
        """Seconds by draft length; in plain steps where nothing was timed. Drafting more cannot take less: that is noise."""
        timed = {n: min(times) for n, times in self.samples.items() if times} or {0: 1.0}
        best = {n: min(seconds for wider, seconds in timed.items() if wider >= n) for n in sorted(timed)}
        return best if len(best) > 1 else best | {1: (1 + self.per_token) * best[0]}

    @property
    def plain_step(self) -> float:
        return self.best()[0]

    @property
    def are_measured(self) -> bool:
        return bool(self.samples[0])

    def wanted(self, num_steps: float) -> int | None:
        """The most telling draft length to time within `num_steps` plain steps; `None` if none fits or all are settled.

        A length that would not pay if its draft was accepted whole tells nothing. A plain step, which all the others are
        compared with, is timed once more than they are.
        """
        plain, *_ = curve = Costs({1: self.best()}).curve(1, max(LENGTHS))
        telling = [n for n in LENGTHS if self.can_grow and curve[n] <= (n + 1) * plain and not self._is_settled(n)]
        fitting = [n for n in telling if curve[n] * (1 if self.samples[n] else CAUTION) <= num_steps * plain]
        return min(fitting, key=lambda n: len(self.samples[n]) - (n == 0), default=None)

    def _is_settled(self, length: int) -> bool:
        fastest, *others = sorted(self.samples[length]) or [0.0]
        return len(others) + 1 >= MAX_REPEATS or (bool(others) and others[0] <= CLOSE * fastest)


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
