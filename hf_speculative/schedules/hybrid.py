"""Guesses that cost no pass or drafts that do: whichever promises more tokens per second."""

from collections.abc import Callable

from ..interfaces import Part, Schedule
from ..types import Batch, Costs, Round
from .best_nodes import BestNodes
from .wrapped import WrappedSchedule

#: expected tokens of the first drafting round, and the decay of that estimate a round
FIRST_TOKENS, MEMORY = 2.5, 0.9
#: the share of the difference to FIRST_TOKENS that a round without a model's draft forgets
FORGIVENESS = 0.01


class HybridSchedule(WrappedSchedule):
    """Another schedule's drafts, in rounds in which guesses promise less.

    Each guess has a probability to be right. The value of a draft is `Schedule.speed` of the other schedule; where that knows
    no times, it is a moving average of the tokens per drafting round, over the cost of such a round.

    Args:
        schedule: of the drafts.
        max_tokens: the most guesses.
        costs: of rounds. Default: learned from those of earlier calls.
    """

    weighs_costs = True

    def __init__(self, schedule: Schedule, max_tokens: int = 64, costs: Costs | None = None):
        super().__init__(schedule)
        self.guesses = BestNodes(max_tokens, costs)
        self.tokens = FIRST_TOKENS
        self.plans: tuple[list[int], list[int]] = [], []

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        self.schedule.begin(batch, costs)
        self.guesses.begin(batch, costs)

    def plan(self, batch: Batch) -> list[int]:
        drafts, guesses = self.plans = self.schedule.plan(batch), self.guesses.plan(batch)
        speed, length = self.schedule.speed, max(drafts)
        if speed is None:
            speed = self.tokens / self.guesses.costs(len(drafts)).steps(length, length)
        self.guesses.to_beat = speed
        return [max(both) for both in zip(drafts, guesses, strict=True)]

    def parts(self, plan: list[int]) -> tuple[Part, Part]:
        drafts, guesses = ([min(both) for both in zip(own, plan, strict=True)] for own in self.plans)
        return (self.guesses, guesses), (self.schedule, drafts)

    def num_passes(self, round: Round) -> int:
        return 0 if self.guesses.last else self.schedule.num_passes(round)

    def update(self, round: Round) -> None:
        self.guesses.update(round)
        if self.guesses.last:
            self.tokens += FORGIVENESS * (FIRST_TOKENS - self.tokens)
            return
        self.schedule.update(round)
        if any(round.num_drafted):
            mean = sum(map(len, round.tokens)) / len(round.rows)
            self.tokens = MEMORY * self.tokens + (1 - MEMORY) * mean
