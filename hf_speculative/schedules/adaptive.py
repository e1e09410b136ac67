"""Choose the draft with the most expected tokens per expected second, by learned costs and acceptance rates.

Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8, without its assumption that all tokens are alike: a round that drafts n
tokens brings a row 1 + s_1 + ... + s_n, s_i the chance that draft token i is kept, and costs what such rounds have taken. All
rows share that time, so one length is chosen for all. Of a tree's levels, each is kept at least as often as a chain's token.

Where no draft seems to pay, the length is 0, plain decoding, unless there is credit: a share of the call, and what drafts have
saved. So bad luck at the start does not end drafting, a text that becomes predictable is noticed, and a useless draft costs
little. What plain rounds did not spend of their shares adds up over calls: costs that were too high once are tried again. The
decision depends only on earlier rounds, so the output stays exact.
"""

from collections.abc import Callable
from math import inf
from typing import cast

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .best_nodes import MARGIN, BestNodes
from .evidence import PRIOR_RATE, Evidence, expected_tokens

#: what drafts may lose against plain decoding: a share of the call's plain steps, and at most MOST_CREDIT steps they saved; or
#: that share of all plain rounds since the last draft
SHARE, MOST_CREDIT = 0.02, 8.0
#: what counts of reading a token that was decoded without a draft: else a draft that reads slowly would not be tried again
MOST_COUNTED = 0.4 * SHARE
#: until a tree was tried: the share of a chain's rejected tokens that a tree is assumed to have
RESCUED = 0.5
#: rounds of one kind (chain, tree) after which the other kind is tried again
PATIENCE = 32
#: expected nodes of the first tree, and the decay of that estimate a tree
FIRST_NODES, MEMORY = 8.0, 0.9


class Adaptive(Schedule):
    """The length of a chain, or the levels of a tree, that promises most tokens a second, 0 included.

    Args:
        max_tokens: the longest chain.
        max_nodes, max_levels: the largest tree, of a drafter that grows one level by level.
        costs: of rounds. Default: learned from those of earlier calls. With given costs, lengths do not depend on the clock.
        window: tokens of a text that the draft reads at most; `None`: all.

    Raises:
        ValueError: one of the first three is below 1.
    """

    weighs_costs = True

    def __init__(
        self,
        max_tokens: int = 16,
        max_nodes: int = 64,
        max_levels: int = 8,
        costs: Costs | None = None,
        window: int | None = None,
    ):
        for name, most in (("max_tokens", max_tokens), ("max_nodes", max_nodes), ("max_levels", max_levels)):
            if most < 1:
                raise ValueError(f"`{name}={most}` drafts nothing: give 1 or more.")
        self.max_tokens, self.max_nodes, self.max_levels = max_tokens, max_nodes, max_levels
        self.most_read = inf if window is None else window
        self.chains, self.trees = Evidence(max_tokens), Evidence(max_levels, _rescued(PRIOR_RATE))
        self.nodes, self.typical = BestNodes(max_nodes, costs), min(FIRST_NODES, float(max_nodes))
        self.rounds_since_chain = self.rounds_since_tree = 0
        self.credit = self.saved = MOST_CREDIT
        self.unspent = 0.0
        self.levels, self.left, self.lengths = 0, list[int](), dict[int, int]()
        self.unread_prompt = self.unread = 0.0
        self.drafts = self.is_read = False
        self.resting, self.needed, self.to_try, self.is_try = list[int](), 0.0, 0.0, False

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        self.nodes.begin(batch, costs)
        self.costs = self.nodes.costs
        self.credit = min(self.saved, SHARE * (batch.max_length - batch.prompt_width))
        self.unread_prompt = min(batch.prompt_width, self.most_read)

    @property
    def learned(self) -> tuple[Evidence, Evidence, float, float]:  # type: ignore[override]
        """Of chains and trees, plain steps that calls have saved, less what they lost, and `unspent`."""
        return self.chains.faded(), self.trees.faded(), min(self.saved, MOST_CREDIT), self.unspent

    @learned.setter
    def learned(self, learned: object) -> None:
        chains, trees, self.saved, self.unspent = cast(tuple[Evidence, Evidence, float, float], learned)
        self.chains, self.trees, self.credit = chains.faded(), trees.faded(), min(self.credit, self.saved)

    def plan(self, batch: Batch) -> list[int]:
        rooms, self.levels, self.speed, self.drafts = self.rooms(batch), 0, 1.0, False
        self._count_unread(batch)
        longest = min(self.max_tokens, max(batch.rooms)) if any(rooms) else 0
        if not longest or (batch.rows == self.resting and self.credit < self.needed and self.unspent < self.to_try):
            return [0] * len(rooms)
        self.left = [] if batch.refills else [batch.max_length - length for length in batch.host_lengths]
        self._refresh(batch)
        costs, of_chains = self.costs(len(rooms)), [self.chains.rates(row)[:longest] for row in batch.rows]
        speed, length = self._best(of_chains, batch, lambda n: costs.steps(n, n))
        if batch.grows_levels:
            of_trees = [self.trees.rates(row)[:longest] for row in batch.rows]
            of_tree, levels = self._best(of_trees, batch, lambda n: costs.steps(n, max(n, round(self.typical)), n))
            if of_tree > speed:
                speed, self.levels = of_tree, levels
        most, nodes = (self.levels, max(self.levels, round(self.typical))) if self.levels else (length, length)
        if not self._is_worth(speed, most, costs.steps(most, nodes, self.levels), costs, batch):
            self.levels = 0
            return [0] * len(rooms)
        self.speed, self.drafts = speed, True
        return [min(self.max_nodes if self.levels else length, room) for room in rooms]

    @staticmethod
    def _best(rates: list[list[float]], batch: Batch, steps: Callable[[int], float]) -> tuple[float, int]:
        """How many times as fast as plain steps the rest of the batch can be, and with how many tokens or levels, 1 or more.

        A batch is over when its slowest row is. Where other rows wait for the lanes that become free, all tokens count alike.
        """
        gains = [expected_tokens(*row) for row in zip(rates, batch.rooms, strict=True)]
        left = [max(1, batch.max_length - length) for length in batch.host_lengths]

        def speed(n: int) -> float:
            if batch.refills:
                return sum(row[n] for row in gains) / len(gains) / steps(n)
            return max(left) / max(tokens / row[n] for tokens, row in zip(left, gains, strict=True)) / steps(n)

        return max((speed(n), n) for n in range(1, len(gains[0])))

    def _is_worth(self, speed: float, most: int, steps: float, costs: Costs, batch: Batch) -> bool:
        """Whether drafts of which `most` tokens can be kept pay in what is left of the call, or there is credit for one.

        Args:
            speed: of rounds, over plain decoding; each takes `steps` plain steps.
        """
        left, first = max(batch.max_length - done for done in batch.host_lengths), self._first(costs)
        if left * (1 - MARGIN / speed) > first:  # even ones lose: what is known of costs and acceptance is uncertain
            return True
        if self._may_lose(max(0.0, steps * (1 - speed)) + self._first(costs, MOST_COUNTED), may_pay=1 + most > steps):
            return True
        self.resting = [*batch.rows]  # until there is credit for what is needed by now, or more
        tokens = "1 draft token" if most == 1 else f"{most} draft tokens"
        begins = f", the first one {first:.1f} more," if first >= 0.05 else ""
        self.reason = f"a round with {tokens} takes {steps:.1f} plain steps{begins} and brings about {speed * steps:.1f} tokens"
        return False

    def _may_lose(self, lost: float, may_pay: bool) -> bool:
        """Whether there is credit for a round that loses `lost` plain steps; `may_pay` if it could bring more at best."""
        self.to_try = 2 * lost  # so that rounds after the first one can be timed
        if self.unspent >= self.to_try > 0:
            self.credit, self.unspent, self.is_try = max(self.credit, self.unspent), 0.0, True
        self.needed = lost if self.is_try or may_pay else inf
        self.is_try &= self.credit >= self.needed
        return self.credit >= self.needed

    def _refresh(self, batch: Batch) -> None:
        """Estimate a kind without evidence from the other one, and retry a kind that PATIENCE rounds did not use."""
        if self.rounds_since_chain == PATIENCE:
            self.chains, self.rounds_since_chain = Evidence(self.max_tokens, self.trees.all_rows.rate()), 0
        if self.rounds_since_tree == PATIENCE or (self.trees.is_assumed and not self.chains.is_assumed):
            self.trees, self.rounds_since_tree = Evidence(self.max_levels, _rescued(self.chains.all_rows.rate())), 0
        for kind in (self.chains, self.trees):
            kind.forget_all_but(batch.rows)

    def num_levels(self, batch: Batch) -> int:
        return self.levels

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        if not self.levels:  # a chain and guesses beside it, as many as were planned
            return super().num_nodes(batch, chances)
        counts = self.nodes.best(chances, self.levels)
        self.typical = max(1.0, MEMORY * self.typical + (1 - MEMORY) * max(counts))
        return counts

    def num_passes(self, round: Round) -> int:
        return self.levels or super().num_passes(round)

    def update(self, round: Round) -> None:
        self.earn(SHARE, SHARE)
        self.drafts, self.is_read = False, self.drafts
        nodes = max(round.num_drafted)
        drafts = list(zip(round.rows, round.acceptance_prob, round.num_drafted, strict=True))
        if self.levels:
            self.nodes.update(round)
            self.trees.add({row: [*[1.0] * len(kept), 0.0][: self.levels] for row, kept, _ in drafts})
            self.rounds_since_chain, self.rounds_since_tree = self.rounds_since_chain + 1, 0
        elif nodes:  # the path that was kept of a tree of guesses beside the chain stands for it
            self.chains.add({row: [*kept, 0.0][:num] for row, kept, num in drafts if num})
            self.rounds_since_chain, self.rounds_since_tree = 0, self.rounds_since_tree + 1
        else:
            self.unspent += SHARE
            return
        self.unspent, costs = 0.0, self.costs(len(drafts))
        gains = [1 + sum(kept) for _, kept, _ in drafts]
        saved = sum(gains) / len(gains)
        if self.left:  # until the last row is done
            saved = max(self.left) - max(left - gain for left, gain in zip(self.left, gains, strict=True))
        saved -= costs.steps(self.num_passes(round), nodes, self.levels)
        self.earn(saved - self._first(costs), saved - self._first(costs, MOST_COUNTED))
        self.resting = []

    def _count_unread(self, batch: Batch) -> None:
        """Count tokens that the draft will read first, in the mean of all rows. Newcomers are read when they are admitted."""
        lengths = dict(zip(batch.rows, batch.host_lengths, strict=True))
        if self.is_read:
            self.unread_prompt = self.unread = 0.0
        else:
            grown = [length - self.lengths.get(row, length) for row, length in lengths.items()]
            self.unread = min(self.most_read - self.unread_prompt, self.unread + sum(grown) / len(grown))
        self.lengths, self.is_read = lengths, False

    def _first(self, costs: Costs, most: float = inf) -> float:
        """Plain steps in which the next draft reads the prompts, and what was decoded since: at most `most` for each token."""
        token = costs.draft * costs.verify
        return token * self.unread_prompt + min(token, most) * self.unread

    def earn(self, steps: float, of_credit: float) -> None:
        """Plain steps that drafts have saved or lost, and those that count for credit."""
        self.saved += steps
        self.credit = min(self.credit + of_credit, MOST_CREDIT)


def _rescued(rate: float) -> float:
    return rate + (1 - rate) * RESCUED
