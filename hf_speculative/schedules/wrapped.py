"""Schedules around another one."""

import copy

from torch import Tensor

from ..forwarding import forwards_to
from ..interfaces import Schedule
from ..types import Batch


@forwards_to("schedule", "learned")
class WrappedSchedule(Schedule):
    """A schedule around another one: what a subclass does not define is the other's."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule


class ConfidenceStop(WrappedSchedule):
    """Another schedule's lengths, cut after a token x with q(x) < `threshold`, or before one whose estimate is below it.

    The unsure token stays in the draft and is verified. Leaving it out would be a decision that depends on a token which is
    then thrown away, and would bias the output: with p=(.5, .5), q=(.9, .1) and "keep only if q > .5" the distribution
    becomes (.55, .45). An estimate of what the target keeps (DSpark's confidence head) is there before the token is drawn.

    Reads one flag a draft token from the device, to stop the draft model early.
    """

    may_stop = True
    has_estimates = False
    parts = Schedule.parts  # of all drafts, whatever the other schedule says

    def __init__(self, schedule: Schedule, threshold: float):
        super().__init__(schedule)
        self.threshold = threshold

    def plan(self, batch: Batch) -> list[int]:
        chains = copy.copy(batch)
        chains.grows_levels = False  # the draft ends with a token
        return self.schedule.plan(chains)

    def num_levels(self, batch: Batch) -> int | None:
        return 0

    def should_stop_before(self, chances: Tensor) -> Tensor:
        self.has_estimates = True
        return chances < self.threshold

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        if self.has_estimates:
            return None
        return scores.softmax(-1).gather(1, tokens[:, None])[:, 0] < self.threshold


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
