"""Time the rounds of a call, to learn their costs."""

import time
from collections.abc import Callable, Container

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .round_costs import MOST_PLAIN, RoundCosts, rounded
from .wrapped import WrappedSchedule

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

    def __init__(
        self, schedule: Schedule, known: RoundCosts, num_first: Callable[[], int], settled: Container[int] | None
    ):
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
        passes = self.schedule.num_passes(round)
        if not self.is_plain:  # else it is none of the other's rounds
            self.schedule.update(round)
        passes = 0 if self.is_plain else passes
        counts = self.counts and self.num_first() == self.first_before
        is_whole = nodes or not passes  # no tree that was drafted and not worth its pass
        if counts and is_whole and (self.is_caught_up or not passes):
            self.known.see(len(round.rows), passes, nodes, seconds, self.levels if passes else 0)
        if self.is_plain and not counts:  # the next one is, unless none ever counts
            self.num_vain += self.num_vain < MOST_PLAIN
            self.known.spend(len(round.rows))
        if not self.is_plain:  # behind which a draft reads one token more
            self.is_caught_up = passes > 0
