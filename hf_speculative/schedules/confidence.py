"""Stop drafting at the first token that the draft itself was unsure of.

The unsure token stays in the draft and is verified. Leaving it out would be a decision that depends on a token which is
then thrown away, and would bias the output: with p=(.5, .5), q=(.9, .1) and "keep only if q > .5" the law becomes
(.55, .45). Reads one flag a draft token from the device, to stop the draft model early.
"""

from collections.abc import Callable

from torch import Tensor

from ..interfaces import Schedule
from ..types import Batch, Costs, Round


class ConfidenceStop(Schedule):
    """Another schedule's lengths, cut after a token x with q(x) < `threshold`."""

    def __init__(self, schedule: Schedule, threshold: float):
        self.schedule, self.threshold = schedule, threshold

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.schedule.begin(batch, costs)

    def num_draft_tokens(self, row: int) -> int:
        return self.schedule.num_draft_tokens(row)

    def plan(self, batch: Batch) -> list[int]:
        return self.schedule.plan(batch)

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor:
        return scores.softmax(-1).gather(1, tokens[:, None])[:, 0] < self.threshold

    def update(self, round: Round) -> None:
        self.schedule.update(round)
