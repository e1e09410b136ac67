"""Rounds that a call runs anyway tell what rounds cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median_low

from ..distributed.tensor_parallel import SingleProcess
from ..interfaces import Schedule
from ..schedules.wrapped import WrappedSchedule
from ..types import Batch, Costs, Round
from .measured_costs import SETTLED, MeasuredCosts


class OnlineCosts(WrappedSchedule):
    """Another schedule, which is told what the call's own rounds have cost if it asks for costs.

    A round is held against others near it, of other widths, for a machine may be half as fast a minute later. Where the last
    `SETTLED` ones have none and the width is not known yet, one round is plain. First rounds of a width, in which kernels are
    chosen and memory is taken, do not count, nor do those that admit rows.

    Args:
        schedule: what to ask otherwise.
        measured: of the call.
        ranks: who tells the time.
    """

    def __init__(self, schedule: Schedule, measured: MeasuredCosts, ranks: SingleProcess):
        super().__init__(schedule)
        self.measured, self.ranks = measured, ranks
        self.last: deque[tuple[int, int, float]] = deque(maxlen=SETTLED)  # rows, columns, seconds of a plain step
        self.stages: dict[str, float] = {}
        self.shape: tuple[int, int, int] | None = None  # rows, columns, levels of the last round, where it counts
        self.drafted: tuple[int, int, int] | None = None  # and of the last one with a draft
        self.is_plain = self.counts = self.changed = False
        self.now = time.perf_counter()

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        super().begin(batch, costs)
        self.table = self.measured.table if self.measured.may_learn else None
        self.num_rows = len(batch.rows)

    def plan(self, batch: Batch) -> list[int]:
        rows = len(batch.rows)
        # Of the numbers of rows that a batch runs through as rows end, a few say enough.
        self.counts = (
            self.table is not None and not batch.is_unread and (rows == self.num_rows or not rows & (rows - 1))
        )
        self.is_plain = self.counts and self._lacks_others(rows)
        plan = [0] * rows if self.is_plain else self.schedule.plan(batch)
        self.levels = None if self.is_plain else self.schedule.num_levels(batch)
        return plan

    def num_levels(self, batch: Batch) -> int | None:
        return self.levels

    def _lacks_others(self, rows: int) -> bool:
        """Drafts were as wide as the last one for a while, and nobody knows what that costs."""
        if self.table is None or self.drafted is None or self.drafted[0] != rows:
            return False
        width = self.drafted[1]
        others = any(n == rows and columns != width for n, columns, _ in self.last)
        return not (others or len(self.table.cells.get(("pass", rows, width), ())) >= SETTLED // 2)

    def update(self, round: Round) -> None:
        if not self.is_plain:  # else it is none of the other's rounds
            self.schedule.update(round)
        width = max(round.num_drafted)
        self.shape = (len(round.rows), 1 + width, (self.levels or width) if width else 0) if self.counts else None
        if width and self.shape is not None:
            is_first, self.drafted = self.drafted is None, self.shape
            self.shape = None if is_first else self.shape  # the first draft reads the prompts

    def lap(self, stage: str) -> None:
        """A stage of a round has just ended; the one called "rest" comes before a round and after it."""
        last, self.now = self.now, time.perf_counter()
        if stage != "rest":
            self.stages[stage] = self.stages.get(stage, 0.0) + self.now - last
            return
        if "accept" in self.stages and self.shape is not None:
            self.stages["rest"] = self.now - last
            self._learn(*self.shape, self.stages.pop("draft"), sum(self.stages.values()))
        self.stages = {}

    def _learn(self, rows: int, columns: int, levels: int, drafting: float, seconds: float) -> None:
        table, cell = self.table, ("pass", rows, columns)
        assert table is not None
        if cell not in table.warm:
            table.warm.add(cell)
            return
        seconds, drafting = self.ranks.number(seconds), self.ranks.number(drafting)
        others = [step for n, width, step in self.last if n == rows and width != columns]
        if columns == 1:
            if not table.is_settled(("step", rows, 1)):
                table.add(("step", rows, 1), seconds)
                self.changed = True
        elif others:
            step = median_low(others)
            if not table.is_settled(cell):
                table.add(cell, max(1.0, seconds / step))
                table.add(("draft", rows, levels), max(1e-6, drafting / step))
                self.changed = True
        if columns == 1 or cell in table.cells:
            self.last.append((rows, columns, seconds / table.ratio("pass", rows, columns)))
        if self.changed and self.table is not None:
            self.schedule.update_costs(self.measured.so_far(self.num_rows))

    def end(self) -> None:
        """The call is over."""
        if self.changed and self.table is not None:
            self.table.keep()
