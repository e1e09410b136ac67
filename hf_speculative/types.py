"""What the stages of speculative decoding hand to each other. Shapes are written here, once.

``batch`` is the number of rows still running, ``k`` the widest proposal of the round, ``vocab`` the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from .batch import Batch

if TYPE_CHECKING:
    from .models import CachedModel
    from .sampling.samplers import Sampler
    from .schedules import Costs


class NoDistribution(RuntimeError):
    """The target's logits are no distribution to draw the next token from; plain `generate` raises a `RuntimeError` as well."""


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes in one round.

    Attributes:
        tokens: `(batch, k)` int64 proposed token ids; what stands beyond a row's `num_tokens` is filler.
        probs: `(batch, k, vocab)` float32, the law each token was *really* drawn from, or `None` for a deterministic
            proposal, whose law is one-hot.
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
        """`probs` with a one-hot law written out, as wide and of the type of `like`."""
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


class Drafter:
    """Stage 1, who guesses. A subclass needs `propose`; the rest has defaults for a drafter without a memory.

    Attributes:
        num_forwards: model passes so far, for the statistics.
        one_hot_proposals: proposals are not drawn by chance, so that `Draft.probs` is always `None`.
        hidden_layers: which of transformers' `hidden_states` of the target the drafter reads, if any (-1 is the last).
    """

    one_hot_proposals: bool = False
    hidden_layers: tuple[int, ...] = ()

    @property
    def num_forwards(self) -> int:
        return 0

    @property
    def keeps_rows_together(self) -> bool:
        """It pays to keep the rows of a batch at similar lengths: see `CachedModel`."""
        return False

    def follow(self, target: CachedModel) -> None:
        """Called once a call, before `begin`: the target that is drafted for, with its cache and `hidden_states`."""

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        """Called once a call, before its first round: forget earlier calls."""

    def prefill(self, batch: Batch) -> None:
        """Read the prompts of `batch` ahead of time; their rows are then copied by `select`."""

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        """Propose up to `num_tokens[b]` tokens for row b. The loop asks only if one of them is above 0."""
        raise NotImplementedError

    def rollback(self, batch: Batch) -> None:
        """The round is over and `batch` has its new lengths: forget whatever was not accepted."""

    def release(self) -> None:
        """The call is over: memory may be kept for the next one."""

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order."""

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers`, a prompt that waited, takes the place of the row at `lanes[i]`, which is done."""


class Rule:
    """Stages 2 and 3, which guesses survive: a pure function of tensors, without model or cache.

    `lossless` declares the contract that the tests hold a rule to: the tokens kept have exactly the law of plain
    sampling from `target_probs`.
    """

    lossless: bool = False
    #: it looks at `Draft.probs`; where it does not, they are not kept
    reads_draft_probs: bool = True

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        """Judge `draft` by `target_probs (batch, k + 1, vocab)`, whose position i follows the draft's first i tokens."""
        raise NotImplementedError


class Schedule:
    """How many tokens to guess next.

    A decision may depend on the past, on the draft tokens so far and on their laws, never on a token that is then left
    out of verification: that would bias the output (algorithm and counter-example in docs/correctness.md).
    """

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        """Called once a call, before its first round. `costs` tells how long rounds take; asking may mean measuring."""

    def num_draft_tokens(self, row: int) -> int:
        """How many tokens to propose for this row of the call in the next round."""
        raise NotImplementedError

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        """After each draft token, itself included: `(batch,)` bool, the rows that end their draft here.

        `scores (batch, vocab)` are the draft's processed logits and `tokens (batch,)` what was drawn from them.
        """
        return None

    @property
    def may_stop(self) -> bool:
        """Drafts may end early: `should_stop` has a say."""
        return type(self).should_stop is not Schedule.should_stop

    def update(self, round: Round) -> None:
        """Learn from a finished round."""

    def plan(self, batch: Batch) -> list[int]:
        """Draft lengths for each row of the batch, within what the row can still use."""
        rooms = zip(batch.rows, self.rooms(batch), strict=True)
        return [min(self.num_draft_tokens(row), room) if room else 0 for row, room in rooms]

    @staticmethod
    def rooms(batch: Batch) -> list[int]:
        """How many draft tokens each row can use.

        None in the first round: the prompt then goes through the target in the shape that plain `generate` gives it, and the
        first token is there as early. Later ones leave room for the token that the target adds.
        """
        if batch.is_unread:
            return [0] * len(batch.rows)
        return [max(0, batch.max_length - length - 1) for length in batch.host_lengths]
