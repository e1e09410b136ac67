"""A schedule around another one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..interfaces import Part, Schedule
from ..types import Batch, Costs, Round


class WrappedSchedule(Schedule):
    """A schedule around another one: methods that a subclass does not define are the other's."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        self.schedule.begin(batch, costs)

    @property
    def weighs_costs(self) -> bool:  # type: ignore[override]
        return self.schedule.weighs_costs

    @property
    def learned(self) -> object:  # type: ignore[override]
        return self.schedule.learned

    @learned.setter
    def learned(self, learned: object) -> None:
        self.schedule.learned = learned

    def num_draft_tokens(self, row: int) -> int:
        return self.schedule.num_draft_tokens(row)

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        return self.schedule.num_nodes(batch, chances)

    @property
    def chooses_nodes(self) -> bool:
        return self.schedule.chooses_nodes

    def num_levels(self, batch: Batch) -> int | None:
        return self.schedule.num_levels(batch)

    @property
    def speed(self) -> float | None:  # type: ignore[override]
        return self.schedule.speed

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        return self.schedule.reason

    def num_passes(self, round: Round) -> int:
        return self.schedule.num_passes(round)

    def parts(self, plan: list[int]) -> tuple[Part, Part]:
        return self.schedule.parts(plan)

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        return self.schedule.should_stop(scores, tokens)

    def should_stop_before(self, chances: Tensor) -> Tensor | None:
        return self.schedule.should_stop_before(chances)

    @property
    def may_stop(self) -> bool:
        return self.schedule.may_stop

    def update(self, round: Round) -> None:
        self.schedule.update(round)

    def plan(self, batch: Batch) -> list[int]:
        return self.schedule.plan(batch)
