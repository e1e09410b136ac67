"""Choose the number of draft tokens that pay, by the drafter's own probabilities for each of them."""

from collections.abc import Callable

from ..interfaces import Part, Schedule
from ..types import Batch, Costs, Round
from .wrapped import WrappedSchedule

#: the least expected speedup of a round over a plain step
MARGIN = 1.05
#: told where nothing is drafted
NOTHING_PAYS = f"the likeliest tokens promise less than {MARGIN} times the tokens a second of a plain step"
#: weight, in tokens, of the prior that expected tokens are kept; decay of kept and expected tokens a round
TRUST_WEIGHT, MEMORY = 4.0, 0.97
#: the share of the difference that a round without a draft, or without a model's, forgets: a text may become predictable
FORGIVENESS = 0.01
#: nodes to consider after a round in which none paid, beside those `to_beat`; else a multiple of those proposed last
FEW, MORE = 2, 4
#: after each PATIENCE rounds in which no node paid, one round fewer is examined: every second, third, MOST_REST-th
PATIENCE, MOST_REST = 8, 4
#: expected tokens of the first drafting round, and the decay of that estimate a round
FIRST_TOKENS, MEMORY_OF_TOKENS = 2.5, 0.9


class BestNodes(Schedule):
    """The number of nodes, of a chain or a tree, with the most expected tokens per expected second, 0 included.

    Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8, for a tree: a round brings a row one token and each node's chance to
    be kept, and takes the time of the widest row.

    The likeliest of many guesses look better than they are. So chances count only as far as those of earlier rounds came true.

    Args:
        max_tokens: the most nodes.
        costs: of rounds. Default: learned from those of earlier calls.

    Attributes:
        to_beat: tokens a row in the time of a plain step that something else promises.
        last: nodes of the widest row that this round proposes.
    """

    weighs_costs = True
    to_beat = 0.0

    def __init__(self, max_tokens: int = 64, costs: Costs | None = None):
        if max_tokens < 1:
            raise ValueError(f"`max_tokens={max_tokens}` drafts nothing: give 1 or more.")
        self.max_tokens, self.given = max_tokens, costs
        self.last, self.num_vain = FEW, 0
        self.promised = self.kept = TRUST_WEIGHT

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        self.costs = costs if self.given is None else lambda num_rows: self.given

    def plan(self, batch: Batch) -> list[int]:
        self.num_vain += 1
        rest = min(MOST_REST, 1 + self.num_vain // PATIENCE)
        num_looked_at = min(self.max_tokens, max(FEW + int(self.to_beat), MORE * self.last)) if self.num_vain % rest == 0 else 0
        self.last = 0  # unless some pay
        return [min(num_looked_at, room) for room in self.rooms(batch)]

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        return self.best(chances)

    def num_passes(self, round: Round) -> int:
        return 0

    def best(self, chances: list[list[float]], passes: int = 0) -> list[int]:
        """The number of nodes to verify in each row; `passes` of the draft made them."""
        num_rows, trust = len(chances), min(1.0, self.kept / self.promised)
        costs = self.costs(num_rows)
        best, best_speed, tokens = 0, max(MARGIN / (1 + (costs.draft + costs.level) * passes), self.to_beat), 1.0
        for n in range(1, max(map(len, chances), default=0) + 1):
            tokens += trust * sum(row[n - 1] for row in chances if len(row) >= n) / num_rows
            speed = tokens / costs.steps(passes, n, passes)
            if speed > best_speed:
                best, best_speed = n, speed
        self.last = best
        self.reason = None if best else NOTHING_PAYS
        if best:
            self.num_vain = 0
            self.promised = MEMORY * self.promised + sum(sum(row[:best]) for row in chances)
        return [min(best, len(row)) for row in chances]

    def update(self, round: Round) -> None:
        if self.last:
            self.kept = MEMORY * self.kept + sum(round.num_accepted)
        else:
            self.kept += FORGIVENESS * (self.promised - self.kept)


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
            self.tokens = MEMORY_OF_TOKENS * self.tokens + (1 - MEMORY_OF_TOKENS) * mean
