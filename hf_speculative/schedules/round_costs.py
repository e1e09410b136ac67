"""Time the rounds of calls, and learn the costs of rounds from them.

Costs are in plain steps, so that a slower or faster machine changes the time of a plain step alone.
"""

import time
from collections.abc import Callable, Container
from dataclasses import astuple
from functools import cached_property
from math import inf, log
from pathlib import Path

import numpy as np

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .wrapped import WrappedSchedule

#: relative standard deviation of a round's time, and the share of the way back to their first variance that costs go a round
NOISE, DRIFT = 0.15, 1e-3
#: the same deviation for the first round of a width in a process, which includes warming up
FIRST_NOISE = 0.6
#: the part of a round's deviation that is attributed to the machine's speed once costs are certain
OF_MACHINE, OF_MACHINE_IF_PLAIN = 0.1, 0.5
#: times are clipped to within this factor of the expected time
OUTLIER = 2.0
#: rounds that one counts as whose time is a standard deviation off; the squared deviation from which a plain one is repeated
SURPRISE, UNLIKELY = 3.0, 4.0
#: plain rounds for comparison, of all with drafts, where times vary much, and the most of them in turn
PLAIN_SHARE, MOST_PLAIN = 1 / 16, 5.0
#: rounds with drafts after which costs are settled
SETTLED = 32
#: the assumed extra cost of a tree level, in passes of a chain, until one was timed
LEVEL = 0.5
#: numbers of nodes between which one more always costs the same: kernels take columns in groups
EDGES = np.array([*range(1, 17), 24, 32, 48, 64])
#: standard deviation of that cost for one node, as a share of `verify`'s; less for the mean of several
UNEVEN = 1.0


class RoundCosts:
    """Costs of one kind of call, by the number of rows, rounded up to a power of two.

    Args:
        draft: the assumed cost of a draft pass in plain steps, until one was timed.
        verify: the assumed cost of verifying one more token in each of a number of rows, until it was timed.

    Attributes:
        path: a file that keeps them for later processes.
        num_stored: rounds with drafts that had been timed when it was written last.
    """

    path: Path | None = None
    num_stored = 0

    def __init__(self, draft: float, verify: Callable[[int], float]):
        self.draft, self.verify = draft, verify
        self.fits: dict[int, _Fit] = {}
        self._settled: dict[int, Costs] = {}

    def __call__(self, num_rows: int) -> Costs:
        """By all that is known."""
        return self.fit(num_rows).costs

    def settled(self) -> tuple[Callable[[int], Costs], frozenset[int]]:
        """Costs that no later round changes: what is assumed, or what was known once enough rounds had been timed.

        And the numbers of rows, rounded up, for which they are not assumed.
        """
        known = {size: fit.costs for size, fit in list(self.fits.items()) if fit.num_timed >= SETTLED}
        self._settled = settled = known | self._settled
        return lambda num_rows: settled.get(rounded(num_rows)) or self._assumed(rounded(num_rows)), frozenset(settled)

    def since_plain(self, num_rows: int) -> float:
        """Rounds with drafts that were timed since the last plain one. One that took an unexpected time counts as several."""
        fit = self.fit(num_rows)
        return fit.since_plain if fit.num_allowed >= 1 else 0.0

    @property
    def num_timed(self) -> int:
        """Rounds with drafts that were timed, at batch sizes whose costs are settled."""
        return sum(fit.num_timed for fit in self.fits.values() if fit.num_timed >= SETTLED)

    def stored(self) -> dict[str, dict[int, list]]:
        """What is settled, as JSON takes it; not how fast the machine is. A few rounds may have met a busy machine."""
        self.settled()
        fits = {size: fit for size, fit in self.fits.items() if fit.num_timed >= SETTLED}
        known = {size: [fit.mean.tolist(), fit.covariance.tolist()] for size, fit in fits.items()}
        return {"fits": known, "settled": {size: list(astuple(costs)) for size, costs in self._settled.items()}}

    def restore(self, stored: dict[str, dict[str, list]]) -> None:
        """Start from what `stored` gave in an earlier process."""
        settled = {
            int(size): Costs(draft, verify, start, level, tuple(map(float, uneven)))
            for size, (draft, verify, start, level, uneven) in stored["settled"].items()
        }
        fits = {}
        for size, (mean, covariance) in stored["fits"].items():
            fits[int(size)] = fit = _Fit(self._assumed(int(size)), None)
            fit.mean = np.array(mean, float).reshape(fit.mean.shape)
            fit.covariance = np.array(covariance, float).reshape(fit.first.shape)
            if not (np.isfinite(fit.mean).all() and np.isfinite(fit.covariance).all()):
                raise ValueError(f"costs of {size} rows are not finite")
            fit.num_timed = SETTLED  # so that a few more rounds count for a new file
        self._settled, self.fits = settled, fits
        self.num_stored = self.num_timed

    def _assumed(self, size: int) -> Costs:
        return Costs(self.draft, self.verify(size), level=LEVEL * self.draft)

    def fit(self, num_rows: int) -> "_Fit":
        """What learns from rounds of so many rows."""
        size = rounded(num_rows)
        if size not in self.fits:
            costs, plain_step = self._assumed(size), None
            if self.fits:
                nearest = min(self.fits, key=lambda other: max(other / size, size / other))
                known, plain_step = self.fits[nearest].costs, self.fits[nearest].plain_step
                slope = (known.steps(0, EDGES[-1]) - known.steps(0, 1)) / (EDGES[-1] - 1)
                costs = Costs(known.draft, slope * costs.verify / self.verify(nearest), known.start, known.level)
            self.fits = {**self.fits, size: _Fit(costs, plain_step)}
        return self.fits[size]


def rounded(num_rows: int) -> int:
    return 1 << (num_rows - 1).bit_length()


#: of 1, 2, ... nodes, how many are between the EDGES
_BETWEEN = np.clip(np.arange(1, EDGES[-1] + 1)[:, None] - EDGES[:-1], 0, np.diff(EDGES))


class _Fit:
    """A Kalman filter over (start, draft, verify, level) and what one more node costs beside `verify` between each two EDGES.

    All drift slowly. The seconds of a plain step are estimated beside it.
    """

    def __init__(self, costs: Costs, plain_step: float | None):
        verify, lengths = 0.05 + costs.verify, np.diff(EDGES)
        self.mean = np.array([costs.start, costs.draft, costs.verify, costs.level, *np.zeros(len(lengths))])
        # A draft's cost may be several times what its weights say, but where it has none it has none.
        self.first = np.diag([0.1, costs.draft, verify, costs.draft, *(UNEVEN * verify / np.sqrt(lengths))]) ** 2
        self.covariance, self.plain_step, self.num_timed = self.first, plain_step, 0
        self.widths, self.since_plain, self.num_allowed = set[tuple[int, bool]](), inf, MOST_PLAIN

    @cached_property  # asked for several times a round
    def costs(self) -> Costs:
        start, draft, verify, level = np.maximum(0.0, self.mean[:4]).tolist()
        slopes = np.maximum(0.0, self.mean[2] + self.mean[4:])  # more nodes cost no less
        return Costs(draft, verify, start, level, tuple((_BETWEEN @ (slopes - verify)).tolist()))

    def see(self, passes: int, nodes: int, seconds: float, levels: int) -> None:
        """Learn from a round: `passes` of the draft, and `nodes` of `levels` levels verified in its widest row."""
        self.num_allowed = min(MOST_PLAIN, self.num_allowed + PLAIN_SHARE)
        if self.plain_step is None:
            self.plain_step = None if nodes else seconds
            return
        seen = np.array([1.0, passes, nodes, levels, *_BETWEEN[min(nodes, EDGES[-1]) - 1]]) * (nodes > 0)
        expected = max(0.5, 1 + float(seen @ self.mean))
        steps = min(max(seconds / self.plain_step, expected / OUTLIER), expected * OUTLIER)
        part, width, noise = OF_MACHINE_IF_PLAIN, (nodes, levels > 0), NOISE
        if nodes:
            noise = NOISE if width in self.widths else FIRST_NOISE
            self.widths.add(width)
        uncertain = self.covariance @ seen
        variance = float(seen @ uncertain) + (noise * expected) ** 2
        # In squared standard deviations: below 1 as a rule, and more where the machine has changed.
        surprise = log(steps / expected) ** 2 * expected**2 / variance
        gain = uncertain / variance
        vars(self).pop("costs", None)
        self.mean = self.mean + gain * (steps - expected)
        self.covariance = self.covariance - np.outer(gain, uncertain)
        self.covariance = self.covariance + DRIFT * (self.first - self.covariance)  # never less certain than at first
        if nodes:
            self.num_timed, part = self.num_timed + 1, OF_MACHINE * (1 - float(gain @ seen))
            self.since_plain += max(1.0, SURPRISE * surprise)
        else:
            self.since_plain = inf if surprise > UNLIKELY else 0.0
            self.spend()
        self.plain_step *= (steps / expected) ** part

    def spend(self) -> None:
        """A plain round, which may not have counted."""
        self.num_allowed = max(0.0, self.num_allowed - 1)


#: round FIRST and every EVERY-th after it is plain, for comparison, in calls for LONG_CALL new tokens or more
EVERY, FIRST, LONG_CALL = 64, 2, 32


class Timed(WrappedSchedule):
    """Wrap a schedule, and add the times of its rounds to `known`.

    Rounds that read prompts are left out, and those in which a draft reads what was decoded without it.

    Args:
        num_first: counts passes that take longer than later ones of their kind; rounds with one are left out as well.
            Where there are none, pass `int`, which returns 0.
        settled: where tokens depend on draft lengths, the batch sizes whose costs do not change: these need no plain rounds.
            Elsewhere rounds of earlier calls count as well, and a plain one comes when EVERY others have been timed.
    """

    def __init__(self, schedule: Schedule, known: RoundCosts, num_first: Callable[[], int], settled: Container[int] | None):
        super().__init__(schedule)
        self.known, self.num_first, self.settled, self.num_rounds, self.num_vain = known, num_first, settled, 0, 0
        self.counts = self.is_caught_up = self.is_plain = self.is_long = False

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        super().begin(batch, costs)
        self.is_long = batch.max_length - batch.prompt_width >= LONG_CALL

    def plan(self, batch: Batch) -> list[int]:
        self.counts = not batch.is_unread
        self.is_plain = self.counts and self.is_long and self._is_due(len(batch.rows))
        self.num_rounds += self.counts
        self.first_before = self.num_first()
        self.started = time.perf_counter()
        self.levels = 0
        if self.is_plain:
            return [0] * len(batch.rows)
        plan = self.schedule.plan(batch)
        self.levels = self.schedule.num_levels(batch) or 0
        return plan

    def _is_due(self, num_rows: int) -> bool:
        if self.settled is None:
            return self.num_rounds >= FIRST and self.known.since_plain(num_rows) >= EVERY
        return (self.num_rounds - self.num_vain) % EVERY == FIRST and rounded(num_rows) not in self.settled

    def update(self, round: Round) -> None:
        seconds, nodes = time.perf_counter() - self.started, max(round.num_drafted)
        passes = 0 if self.is_plain else self.schedule.num_passes(round)
        if not self.is_plain:  # else it is none of the other's rounds
            self.schedule.update(round)
        counts = self.counts and self.num_first() == self.first_before
        is_whole = nodes or not passes  # no tree that was drafted and not worth its pass
        if counts and is_whole and (self.is_caught_up or not passes):
            self.known.fit(len(round.rows)).see(passes, nodes, seconds, self.levels if passes else 0)
        if self.is_plain and not counts:  # the next one is, unless none ever counts
            self.num_vain += self.num_vain < MOST_PLAIN
            self.known.fit(len(round.rows)).spend()
        if not self.is_plain:  # behind which a draft reads one token more
            self.is_caught_up = passes > 0
