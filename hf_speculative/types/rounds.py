"""What a round did, and how long rounds take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

from torch import Tensor


class NoDistribution(RuntimeError):
    """The target's logits are no distribution to draw the next token from; plain `generate` raises a `RuntimeError` as well."""


@dataclass(frozen=True)
class Verdict:
    """What a rule decides about one draft.

    Attributes:
        num_accepted: `(batch,)` int64, how many draft tokens each row keeps.
        next_token: `(batch,)` int64, the token the target adds after them: bonus or correction.
        acceptance_prob: `(batch, k)` float, the chance, given the draft, that each draft token and all before it are kept: an
            estimate with less noise than the coins that were flipped. `None`: what was kept stands for it, as 0 and 1.
        path: `(batch, depth)` int64, which tokens of a tree each row keeps, in order; what stands beyond its `num_accepted` is
            filler. `None`: the first ones.
        chances: `(batch, 2)` float, summed over the positions of a chain that were reached: with what chance a token drawn from
            the draft's distribution is kept, and with what chance the likeliest. `None`: not known.
    """

    num_accepted: Tensor
    next_token: Tensor
    acceptance_prob: Tensor | None = None
    path: Tensor | None = None
    chances: Tensor | None = None


@dataclass
class Appended:
    """What `Batch.append` read from the device, one entry a row.

    Attributes:
        tokens: the new tokens; `NO_TOKEN` from the first on that came from no distribution.
        num_drafted: draft tokens proposed.
        acceptance_prob: `Verdict.acceptance_prob` of the draft tokens, of a tree those on the path that was kept.
        chances: `Verdict.chances`, of all rows together.
    """

    tokens: list[list[int]]
    num_drafted: list[int]
    acceptance_prob: list[list[float]]
    chances: tuple[float, float] | None = None


@dataclass
class Round:
    """What one round did, for whoever follows the loop. Lists have one entry a running row.

    Attributes:
        rows: which row of the call each entry belongs to.
        tokens: the new tokens of each row, already cut at the first stop.
        num_drafted: draft tokens proposed.
        num_from_draft: how many of `tokens` came from the draft.
        done: rows that end with this round.
        logits: `(batch, k + 1, vocab)` the target's logits; position i is the one that token i was chosen at.
        scores: the same after every logits processor.
        acceptance_prob: for each draft token proposed, `Verdict.acceptance_prob`.
    """

    rows: list[int]
    tokens: list[list[int]]
    num_drafted: list[int]
    num_from_draft: list[int]
    done: list[bool]
    logits: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    acceptance_prob: list[list[float]] = field(default_factory=list)

    @property
    def num_accepted(self) -> list[int]:
        """Draft tokens accepted: the new tokens but one, for each round brings one token of its own.

        Where a stop cuts inside the accepted tokens, the last one kept counts as the round's own, so that accepted
        tokens plus rounds is the number of new tokens, always.
        """
        return [len(tokens) - 1 for tokens in self.tokens]

    @property
    def acceptance_prob_of_tokens(self) -> list[list[float]]:
        """`acceptance_prob` of each new token, nan for the target's own."""
        rows = zip(self.tokens, self.num_from_draft, self.acceptance_prob, strict=True)
        return [chances[:num] + [nan] * (len(tokens) - num) for tokens, num, chances in rows]

    @property
    def is_cut(self) -> list[bool]:
        """Rows that a stop ended inside their accepted draft tokens, before the target's own."""
        return [n == len(tokens) for n, tokens in zip(self.num_from_draft, self.tokens, strict=True)]


@dataclass(frozen=True)
class Costs:
    """The time of a round: draft, one target pass, and everything around them.

    Attributes:
        rounds: `{batch_size: {num_draft_tokens: time}}`, in any unit. 0 draft tokens, one step of plain decoding, has to be
            there. Between two numbers the line through them is followed; beyond the largest draft, the last one; beyond the
            batch sizes given, the nearest of them.
        trees: `{batch_size: {num_levels: {num_nodes: time}}}`, of rounds that draft a tree a level at a time. Of two numbers of
            levels at least; each level is taken to cost the same.
        guesses: of rounds whose draft takes no pass, where a call has both kinds.

    Raises:
        ValueError: nothing given, no time of a plain step, trees of one number of levels, or a time that is not above 0.
    """

    rounds: Mapping[int, Mapping[int, float]]
    trees: Mapping[int, Mapping[int, Mapping[int, float]]] = field(default_factory=dict)
    guesses: Costs | None = None

    def __post_init__(self):
        if not self.rounds:
            raise ValueError("`rounds={}` gives no costs: give them as {batch_size: {num_draft_tokens: time}}.")
        for batch_size, times in self.rounds.items():
            if 0 not in times:
                raise ValueError(
                    f"`rounds[{batch_size}]={dict(times)}` lacks 0 draft tokens, a step of plain decoding."
                )
            if not all(time > 0 for time in times.values()):
                raise ValueError(f"`rounds[{batch_size}]={dict(times)}`: times have to be above 0.")

        for batch_size, by_levels in self.trees.items():
            if len(by_levels) < 2:
                raise ValueError(f"`trees[{batch_size}]` has trees of one number of levels: give two.")
            if not all(time > 0 for times in by_levels.values() for time in times.values()):
                raise ValueError(f"`trees[{batch_size}]`: times have to be above 0.")

    def curve(self, batch_size: int, longest: int) -> list[float]:
        """Times of rounds of `batch_size` rows that draft 0, 1, ..., `longest` tokens."""
        return [
            _of_batch({size: _interpolated(times, n) for size, times in self.rounds.items()}, batch_size)
            for n in range(longest + 1)
        ]

    def tree_curve(self, batch_size: int, num_levels: int, most_nodes: int) -> list[float]:
        """Likewise of trees of `num_levels` levels, with 0, 1, ..., `most_nodes` nodes."""
        return [
            _of_batch({size: _time_of_tree(times, num_levels, n) for size, times in self.trees.items()}, batch_size)
            for n in range(most_nodes + 1)
        ]


def _time_of_tree(times: Mapping[int, Mapping[int, float]], num_levels: int, num_nodes: int) -> float:
    low, high = min(times), max(times)
    common = max(times[high])
    of_level = max(0.0, times[high][common] - _interpolated(times[low], common)) / (high - low)
    return max(_interpolated(times[low], num_nodes) + (num_levels - low) * of_level, min(times[low].values()) / 2)


def _of_batch(times: Mapping[int, float], batch_size: int) -> float:
    return _interpolated(times, min(max(batch_size, min(times)), max(times)))


def _interpolated(points: Mapping[int, float], at: int) -> float:
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]]
    right = min(max(1, bisect_right(known, at)), len(known) - 1)
    x0, x1 = known[right - 1], known[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)
