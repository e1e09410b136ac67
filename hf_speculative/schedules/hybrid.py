"""Guesses that cost no pass or drafts that do: whichever promises more tokens per second."""

from __future__ import annotations

from collections.abc import Callable

from ..interfaces import Part, Schedule
from ..types import Batch, Costs, Round
from .best_nodes import BestNodes
from .wrapped import WrappedSchedule

#: where costs play no part: tokens that a drafting round is taken to bring before any was seen, and what a round leaves of that
FIRST_TOKENS, MEMORY = 2.5, 0.9
#: what a round without a draft of the model leaves of the difference to that
FORGIVENESS = 0.01


class HybridSchedule(WrappedSchedule):
    """Another schedule's drafts, in rounds in which guesses promise less.

    A guess comes with its chance to be right. A draft's is learned: `Schedule.speed` says what the other schedule expects of
    the next one; where it knows nothing of time, the tokens that drafts brought of late are held against those of the guesses.

    Args:
        schedule: of the drafts.
        max_tokens: the most guesses.
        costs: of rounds, those of guesses in `Costs.guesses`; by default those that are measured.
    """

    def __init__(self, schedule: Schedule, max_tokens: int = 64, costs: Costs | None = None):
        super().__init__(schedule)
        self.costs, self.guesses = costs, _Guesses(max_tokens)
        self.tokens = FIRST_TOKENS
        self.plans: tuple[list[int], list[int]] = [], []

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        found: list[Costs] = []

        def known() -> Costs:
            found[:] = found or [self.costs or costs()]
            return found[0]

        self.schedule.begin(batch, known)
        # A schedule that asks for no costs goes by tokens alone, as if all rounds took equally long.
        self.guesses.costs = (found[0].guesses or found[0]) if found else Costs({1: {0: 1.0}})

    def plan(self, batch: Batch) -> list[int]:
        drafts, guesses = self.plans = self.schedule.plan(batch), self.guesses.plan(batch)
        speed = self.schedule.speed
        self.guesses.to_beat = self.tokens * len(drafts) if speed is None else speed
        self.guesses.num_proposed = 0
        return [max(both) for both in zip(drafts, guesses, strict=True)]

    def parts(self, plan: list[int]) -> tuple[Part, Part]:
        drafts, guesses = ([min(both) for both in zip(own, plan, strict=True)] for own in self.plans)
        return (self.guesses, guesses), (self.schedule, drafts)

    def update(self, round: Round) -> None:
        self.guesses.update(round)
        if self.guesses.num_proposed:
            self.tokens += FORGIVENESS * (FIRST_TOKENS - self.tokens)
            return
        self.schedule.update(round)
        if any(round.num_drafted):
            mean = sum(map(len, round.tokens)) / len(round.rows)
            self.tokens = MEMORY * self.tokens + (1 - MEMORY) * mean


class _Guesses(BestNodes):
    """Nothing where drafts promise more.

    Attributes:
        to_beat: tokens per second that drafts promise.
        num_proposed: of this round.
    """

    to_beat, num_proposed = 0.0, 0

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        counts = super().num_nodes(batch, chances)
        self.num_proposed = max(counts)
        return counts

    def update(self, round: Round) -> None:
        if self.num_proposed or not any(round.num_drafted):
            super().update(round)
