"""Rows that are far ahead of the shortest draft nothing for a while."""

from collections.abc import Callable

from torch import Tensor

from ..interfaces import Schedule
from ..types import Batch, Costs, Round


class Together(Schedule):
    """Another schedule, with a bound on how far the rows of a batch drift apart.

    A batch lasts as long as its slowest row, so that rows ahead lose nothing by waiting; a cache with one length for all rows
    feeds again whatever they are ahead by. Decided from lengths alone, before anything is drafted.

    Args:
        schedule: what to ask otherwise.
        max_lead: columns that a row may be ahead of the shortest one and still draft.
    """

    def __init__(self, schedule: Schedule, max_lead: int = 8):
        self.schedule, self.max_lead = schedule, max_lead

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.schedule.begin(batch, costs)

    def num_draft_tokens(self, row: int) -> int:
        return self.schedule.num_draft_tokens(row)

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        return self.schedule.should_stop(scores, tokens)

    @property
    def may_stop(self) -> bool:
        return self.schedule.may_stop

    def update(self, round: Round) -> None:
        self.schedule.update(round)

    def plan(self, batch: Batch) -> list[int]:
        shortest = min(batch.host_lengths)
        planned = zip(self.schedule.plan(batch), batch.host_lengths, strict=True)
        return [0 if length - shortest > self.max_lead else num_tokens for num_tokens, length in planned]
