"""Rounds that a call runs anyway tell what rounds cost.

For calls only whose tokens do not depend on how many are drafted: greedy ones, and those that are `reproducible`. They go by
what they learn while they run, and so do later calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..interfaces import Schedule
from ..schedules.wrapped import WrappedSchedule
from ..types import Batch, Costs, Round
from .measured_costs import Probe
from .timings import Session

#: rounds that are compared with each other: a busy machine changes its speed within a call
WINDOW = 8
#: a call that compares begins each window with a plain round, in so many of its rounds
NUM_ROUNDS = 48


class OnlineCosts(WrappedSchedule):
    """Another schedule, which is told what the call's own rounds have cost if it asks for costs.

    Rounds are held against plain ones near them, of which a call that is to compare runs a few in between. What does not count:
    the first draft, for which the draft model reads the prompts, rounds of fewer rows, and trees of several levels.

    Args:
        schedule: what to ask otherwise.
        probe: of the call.
    """

    def __init__(self, schedule: Schedule, probe: Probe):
        super().__init__(schedule)
        self.probe, self.session = probe, Session(of_call=True)
        self.is_plain = self.counts = self.has_drafted = self.compares = self.is_kept = False
        self.num_rounds = self.num_compared = 0

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        super().begin(batch, costs)
        self.num_rows = len(batch.rows)
        self.compares = self.probe.found is not None and self.probe.compares()

    def plan(self, batch: Batch) -> list[int]:
        self.counts = self.probe.found is not None and not batch.is_unread and len(batch.rows) == self.num_rows
        is_first = self.num_rounds % WINDOW == 0
        if self.counts and is_first:
            self.session, self.is_kept = Session(of_call=True), False
        self.is_plain = self.counts and is_first and self.compares and self.num_rounds < NUM_ROUNDS
        self.started = time.perf_counter()
        if self.is_plain:
            return [0] * len(batch.rows)
        plan = self.schedule.plan(batch)
        self.counts &= not self.schedule.num_levels(batch)
        return plan

    def update(self, round: Round) -> None:
        seconds = time.perf_counter() - self.started
        if not self.is_plain:  # else it is none of the other's rounds
            self.schedule.update(round)
        if not self.counts:
            return
        self.num_rounds += 1
        length = max(round.num_drafted)
        if length and not self.has_drafted:
            self.has_drafted = True
            return
        self.session.add(length, seconds)
        if self.session.compares:
            self.num_compared += 1
            self.is_kept = self.is_kept or self.probe.keep(self.session)
            is_due = self.num_compared > 1 and self.num_compared.bit_count() == 1  # the 2nd, 4th, 8th, ...
            if is_due and (costs := self.probe.so_far()) is not None:
                self.schedule.update_costs(costs)
