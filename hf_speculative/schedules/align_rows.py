"""Let rows that are far ahead of the shortest draft nothing for a while."""

from ..interfaces import Schedule
from ..types import Batch
from .wrapped import WrappedSchedule


class AlignRows(WrappedSchedule):
    """Another schedule, with a bound on how far the rows of a batch drift apart.

    A batch lasts as long as its slowest row, so that rows ahead lose nothing by waiting; a cache with one length for all rows
    feeds again whatever they are ahead by. Decided from lengths alone, before anything is drafted.

    Args:
        schedule: what to ask otherwise.
        max_lead: columns that a row may be ahead of the shortest one and still draft.
    """

    def __init__(self, schedule: Schedule, max_lead: int = 8):
        super().__init__(schedule)
        self.max_lead = max_lead

    def plan(self, batch: Batch) -> list[int]:
        shortest = min(batch.host_lengths)
        planned = zip(self.schedule.plan(batch), batch.host_lengths, strict=True)
        return [0 if length - shortest > self.max_lead else num_tokens for num_tokens, length in planned]
