"""What the stages of speculative decoding hand to each other, with all shapes.

``batch`` is the number of rows still running, ``k`` the widest proposal of the round, ``vocab`` the target's vocabulary.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import torch
from torch import Tensor
from torch.nn import functional

#: in the place of a token that was drawn from what is no distribution
NO_TOKEN = -1
#: a probability of 1 where it is read from the device as a whole number
UNIT = 2**24


class NoDistribution(RuntimeError):
    """The target's logits are no distribution to draw the next token from; plain `generate` raises a `RuntimeError` as well."""


class Batch:
    """The sequences being generated: one buffer, rows of their own length.

    Columns are laid out as transformers lays them out: the prompt as given, left padding included, then the new
    tokens. So processors and stopping criteria see exactly what they see in plain `generate`.

    Attributes:
        tokens: `(batch, capacity)` int64. Row b is valid up to `lengths[b]`; a draft is written beyond.
        lengths: `(batch,)` int64 on the device, `host_lengths` the same as a list: the host knows them without asking.
        padding: columns of left padding in each row, on the device and as a list; with a mask that hides more, which only the
            universal path takes, how many columns it hides.
        history: the tokens of each row without those, as lists.
        rows: which row of the call each row is.
        max_length: columns after which a row is full; `max_position` is the last position any row of the call can have.
        is_unread: no round is over: the first pass will read the prompts.
        waiting: rows of the call that do not run yet, as a batch of their own, or `None`.
    """

    is_unread: bool = True
    waiting: Batch | None = None

    def __init__(
        self,
        input_ids: Tensor,
        padding: Sequence[int],
        max_length: int,
        history: Sequence[Sequence[int]] | None = None,
    ):
        self.prompt_width = input_ids.shape[1]
        self.max_length = max_length
        self.max_position = max_length - 1 - min(padding)
        self.tokens = input_ids.long().clone()
        self.rows = list(range(input_ids.shape[0]))
        self.host_lengths = [self.prompt_width] * len(self.rows)
        self.lengths = torch.full((len(self.rows),), self.prompt_width, device=input_ids.device)
        self.host_padding = list(padding)
        self.padding = torch.tensor(self.host_padding, device=input_ids.device)
        if history is None:
            history = [ids[pad:] for ids, pad in zip(input_ids.tolist(), padding, strict=True)]
        self.history = [list(row) for row in history]

    def put(self, tokens: Tensor, ahead: int = 0) -> None:
        """Write `tokens (batch, n)` from `ahead` columns beyond each row's length on."""
        self._reserve(max(self.host_lengths) + ahead + tokens.shape[1] + 1)  # and the token that the target will add
        columns = self.lengths[:, None] + torch.arange(ahead, ahead + tokens.shape[1], device=tokens.device)
        self.tokens.scatter_(1, columns, tokens)

    def _reserve(self, end: int) -> None:
        if end > (width := self.tokens.shape[1]):
            self.tokens = functional.pad(self.tokens, (0, max(end, 2 * width) - width))  # doubled: O(1) a token

    def append(
        self, draft: Draft, verdict: Verdict, num_valid: Tensor | None = None
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Lengthen each row by its accepted tokens and the target's own; the new tokens, and the survival of those proposed.

        Of each row, only `num_valid (batch,)` tokens came from a distribution: among the new tokens, `NO_TOKEN` follows them.
        The draft must have been `put` already. Reads from the device, once a round; stop strings, criteria of the user's
        and a confidence stop read more.
        """
        num_accepted, survival = verdict.num_accepted[:, None], verdict.survival
        if survival is None:
            survival = torch.arange(draft.width, device=num_accepted.device) < num_accepted
        in_units = (survival.float().nan_to_num(0) * UNIT).long()  # all that is read is int64, and read at once
        limits = torch.full_like(verdict.num_accepted, draft.width + 1) if num_valid is None else num_valid
        counts = [draft.num_tokens[:, None], num_accepted, limits[:, None], verdict.next_token[:, None]]
        packed = [*counts, draft.tokens, in_units]
        read = torch.cat(packed, 1).tolist()
        self.tokens.scatter_(1, (self.lengths + verdict.num_accepted)[:, None], verdict.next_token[:, None])
        self.lengths = self.lengths + verdict.num_accepted + 1
        new_tokens, survivals = [], []
        for row, (num_proposed, num_kept, limit, next_token, *rest) in enumerate(read):
            new_tokens.append([*rest[:num_kept], next_token])
            survivals.append([n / UNIT for n in rest[draft.width :][:num_proposed]])
            self.host_lengths[row] += num_kept + 1
            self.history[row] += new_tokens[-1]
            new_tokens[-1][limit:] = [NO_TOKEN] * (num_kept + 1 - limit)
        self.is_unread = False
        return new_tokens, survivals

    def replace_tail(self, starts: list[int], tails: list[list[int]]) -> None:
        """Each row keeps its first `starts[b]` columns, padding included, and goes on with `tails[b]`."""
        width = max(map(len, tails))
        self._reserve(max(starts) + width + 1)
        packed = [[s, s + len(t), *t, *[0] * (width - len(t))] for s, t in zip(starts, tails, strict=True)]
        first, lengths, tokens = torch.tensor(packed, device=self.tokens.device).split([1, 1, width], 1)
        self.tokens.scatter_(1, first + torch.arange(width, device=self.tokens.device), tokens)
        self.lengths = lengths[:, 0]
        for row, (start, tail) in enumerate(zip(starts, tails, strict=True)):
            self.host_lengths[row] = start + len(tail)
            del self.history[row][start - self.host_padding[row] :]
            self.history[row] += tail

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        index = torch.tensor(indices, dtype=torch.long, device=self.tokens.device)
        self.tokens, self.lengths, self.padding = self.tokens[index], self.lengths[index], self.padding[index]
        self.rows = [self.rows[i] for i in indices]
        self.host_lengths = [self.host_lengths[i] for i in indices]
        self.host_padding = [self.host_padding[i] for i in indices]
        self.history = [list(self.history[i]) for i in indices]

    def part(self, indices: Sequence[int]) -> Batch:
        """These rows as a batch of their own."""
        part = copy.copy(self)
        part.select(list(indices))
        return part

    def wait_beyond(self, num_rows: int) -> None:
        """Only the first `num_rows` rows run; the others wait until a row is done."""
        indices = list(range(len(self.rows)))
        self.waiting = self.part(indices[num_rows:])
        self.select(indices[:num_rows])

    def newcomers(self, num_rows: int) -> Batch | None:
        """The next `num_rows` rows that wait, or as many as there are, as a batch of their own; `None` without any."""
        if num_rows == 0 or self.waiting is None or not self.waiting.rows:
            return None
        indices = list(range(len(self.waiting.rows)))
        newcomers = self.waiting.part(indices[:num_rows])
        self.waiting.select(indices[num_rows:])
        return newcomers

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers` takes the place of the row at `lanes[i]`, which is done."""
        width = newcomers.tokens.shape[1]
        self._reserve(width)
        index = torch.tensor(lanes, device=self.tokens.device)
        self.tokens[index, :width] = newcomers.tokens
        self.lengths = self.lengths.index_copy(0, index, newcomers.lengths)
        self.padding = self.padding.index_copy(0, index, newcomers.padding)
        for i, lane in enumerate(lanes):
            self.rows[lane] = newcomers.rows[i]
            self.host_lengths[lane] = newcomers.host_lengths[i]
            self.host_padding[lane] = newcomers.host_padding[i]
            self.history[lane] = newcomers.history[i]


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes in one round.

    Attributes:
        tokens: `(batch, k)` int64 proposed token ids; what stands beyond a row's `num_tokens` is filler.
        probs: `(batch, k, vocab)` float32, the distribution each token was *really* drawn from, or `None` for a deterministic
            proposal, whose distribution is one-hot.
        num_tokens: `(batch,)` int64, how many of the `k` tokens each row really proposes.
    """

    tokens: Tensor
    probs: Tensor | None
    num_tokens: Tensor

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @staticmethod
    def empty(batch: Batch) -> Draft:
        """No proposal at all: the round is then one step of plain decoding."""
        tokens = batch.tokens.new_empty(len(batch.rows), 0)
        return Draft(tokens, None, batch.tokens.new_zeros(len(batch.rows)))

    def dense_probs(self, like: Tensor) -> Tensor:
        """`probs` with a one-hot distribution written out, as wide and of the type of `like`."""
        if self.probs is None:
            return torch.zeros_like(like[:, : self.width]).scatter_(2, self.tokens[..., None], 1.0)
        return functional.pad(self.probs, (0, like.shape[2] - self.probs.shape[2]))


@dataclass(frozen=True)
class Verdict:
    """What a rule decides about one draft.

    Attributes:
        num_accepted: `(batch,)` int64, how many draft tokens each row keeps.
        next_token: `(batch,)` int64, the token the target adds after them: bonus or correction.
        survival: `(batch, k)` float, the chance, given the draft, that each draft token and all before it are kept: an estimate
            with less noise than the coins that were flipped. `None`: what was kept stands for it, as 0 and 1.
    """

    num_accepted: Tensor
    next_token: Tensor
    survival: Tensor | None = None


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
        survival: for each draft token proposed, `Verdict.survival`.
    """

    rows: list[int]
    tokens: list[list[int]]
    num_drafted: list[int]
    num_from_draft: list[int]
    done: list[bool]
    logits: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    survival: list[list[float]] = field(default_factory=list)

    @property
    def num_accepted(self) -> list[int]:
        """Draft tokens accepted: the new tokens but one, for each round brings one token of its own.

        Where a stop cuts inside the accepted tokens, the last one kept counts as the round's own, so that accepted
        tokens plus rounds is the number of new tokens, always.
        """
        return [len(tokens) - 1 for tokens in self.tokens]

    @property
    def survival_of_tokens(self) -> list[list[float]]:
        """`survival` of each new token, nan for the target's own."""
        rows = zip(self.tokens, self.num_from_draft, self.survival, strict=True)
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

    Raises:
        ValueError: nothing given, no time of a plain step, or a time that is not above 0.
    """

    rounds: Mapping[int, Mapping[int, float]]

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

    def curve(self, batch_size: int, longest: int) -> list[float]:
        """Times of rounds of `batch_size` rows that draft 0, 1, ..., `longest` tokens."""
        sizes = sorted(self.rounds)
        at_size = min(max(batch_size, sizes[0]), sizes[-1])
        return [
            _interpolated({size: _interpolated(self.rounds[size], n) for size in sizes}, at_size)
            for n in range(longest + 1)
        ]


def _interpolated(points: Mapping[int, float], at: int) -> float:
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]]
    right = min(max(1, bisect_right(known, at)), len(known) - 1)
    x0, x1 = known[right - 1], known[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)
