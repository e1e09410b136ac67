"""Stop drafting at the first token that the draft itself was unsure of.

The unsure token stays in the draft and is verified. Leaving it out would be a decision that depends on a token which is
then thrown away, and would bias the output: with p=(.5, .5), q=(.9, .1) and "keep only if q > .5" the distribution becomes
(.55, .45).

A draft with an estimate of what the target keeps (DSpark's confidence head) ends before the token instead. The estimate is
there before the token is drawn and reads only those before it, which are verified.

Reads one flag a draft token from the device, to stop the draft model early.
"""

import copy

from torch import Tensor

from ..interfaces import Schedule
from ..types import Batch
from .wrapped import WrappedSchedule


class ConfidenceStop(WrappedSchedule):
    """Another schedule's lengths, cut after a token x with q(x) < `threshold`, or before one whose estimate is below it."""

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
