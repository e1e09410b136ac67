"""The batch of sequences, and the draft of a round."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from .rounds import UNIT, Round, Verdict, in_units, uploaded
from .tree import Tree

#: in the place of a token that was drawn from what is no distribution
NO_TOKEN = -1


class Prefix(NamedTuple):
    """Of a new row: its first `num_tokens` tokens are those of the row at `lane`."""

    lane: int
    num_tokens: int


def shared_prefixes(running: Sequence[list[int]], newcomers: Sequence[list[int]]) -> list[Prefix]:
    """What each new row shares with a running one."""
    return [_longest_prefix(running, tokens) for tokens in newcomers]


def _longest_prefix(running: Sequence[list[int]], tokens: list[int]) -> Prefix:
    """The longest beginning of `tokens` that a running row has cached, which is all but its newest token.

    The last token is always left to be read: a pass over nothing would give no logits.
    """
    found = Prefix(0, 0)
    for lane, history in enumerate(running):
        limit = min(len(history), len(tokens)) - 1
        # Nothing to gain over what was found, or another text altogether: most lanes end here, at the speed of C.
        if limit > found.num_tokens and history[: found.num_tokens + 1] == tokens[: found.num_tokens + 1]:
            alike = (i for i in range(found.num_tokens + 1, limit) if history[i] != tokens[i])
            found = Prefix(lane, next(alike, limit))
    return found


class Guide(Protocol):
    """What a row's grammar says of the tokens after its `text`, prompt included, and then `path`, draft tokens."""

    def allows(self, text: Sequence[int], path: tuple[int, ...], token: int) -> bool:
        """Whether `token` may come next."""

    def forced(self, text: Sequence[int], path: tuple[int, ...]) -> list[int]:
        """What comes next whatever the model says; empty: nothing is certain."""


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
        branches: drafts may be trees; `grows_levels`: also those of a drafter that makes a tree a level at a time.
        ends: tokens after which plain decoding asks for nothing more.
        guide_of: what is known beforehand of the tokens of a row of the call; `None`: nothing.
        waiting: rows of the call that do not run yet, as a batch of their own, or `None`.
        tree: how the draft tokens beyond the lengths follow each other; `None`: each the one before it.
        shares_prefixes: rows that wait no longer need not read what a running one has cached (`CachedModel.shares_prefixes`).
        prefixes: of rows that wait no longer, what each shares with a row that is running; empty: nothing.
        path: `(batch, n)` int64, which of them the last round kept, `host_path` the same as lists without filler; `None`: the
            first ones. They have moved up in `tokens`, and what else is kept of them has to: see `CachedModel.rollback`.
    """

    is_unread: bool = True
    branches: bool = False
    grows_levels: bool = False
    waiting: Batch | None = None
    ends: frozenset[int] = frozenset()
    tree: Tree | None = None
    shares_prefixes: bool = False
    prefixes: Sequence[Prefix] = ()
    path: Tensor | None = None
    host_path: list[list[int]] | None = None

    def guide_of(self, row: int) -> Guide | None:
        return None

    def __init__(
        self, input_ids: Tensor, padding: Sequence[int], max_length: int, history: Sequence[Sequence[int]] | None = None
    ):
        self.prompt_width, self.max_length = input_ids.shape[1], max_length
        self.max_position = max_length - 1 - min(padding)
        self.tokens = input_ids.long().clone()
        self.rows = list(range(input_ids.shape[0]))
        self.host_lengths = [self.prompt_width] * len(self.rows)
        self.lengths = torch.full((len(self.rows),), self.prompt_width, device=input_ids.device)
        self.host_padding, self.padding = list(padding), uploaded(padding, input_ids.device)
        if history is None:
            history = [ids[pad:] for ids, pad in zip(input_ids.tolist(), padding, strict=True)]
        self.history = [list(row) for row in history]

    @property
    def rooms(self) -> list[int]:
        """How many draft tokens, one after another, each row has room for beside the token that the target adds."""
        return [max(0, self.max_length - length - 1) for length in self.host_lengths]

    @property
    def refills(self) -> bool:
        """A lane that becomes free is taken by a row that waits."""
        return self.waiting is not None and bool(self.waiting.rows)

    def put(self, tokens: Tensor, ahead: int = 0, tree: Tree | None = None) -> None:
        """Write `tokens (batch, n)` from `ahead` columns beyond each row's length on."""
        self.tree = tree
        self.reserve(max(self.host_lengths) + ahead + tokens.shape[1] + 1)  # and the token that the target will add
        first, width = self.host_lengths[0] + ahead, tokens.shape[1]
        if width == 0:
            return
        if min(self.host_lengths) == max(self.host_lengths):
            self.tokens[:, first : first + width] = tokens
        else:
            self.tokens.scatter_(1, columns_from(self.lengths + ahead, width), tokens)

    def reserve(self, end: int) -> None:
        """Room for columns `[0, end)`."""
        if end > (width := self.tokens.shape[1]):
            self.tokens = functional.pad(self.tokens, (0, max(end, 2 * width) - width))  # doubled: O(1) a token

    def append(self, draft: Draft, verdict: Verdict, is_valid: Tensor | None = None) -> Round:
        """Lengthen each row by its accepted tokens and the target's own.

        The draft must have been `put` already, a path of a tree as a chain (`along_path`). The target had a distribution where
        `is_valid (batch, k + 1)`. Reads from the device, once a round; stop strings, criteria of the user's and a confidence
        stop read more.
        """
        num_accepted, acceptance_prob, path = verdict.num_accepted[:, None], verdict.acceptance_prob, verdict.path
        if acceptance_prob is None and draft.width:
            acceptance_prob = torch.arange(draft.width, device=num_accepted.device) < num_accepted
        if is_valid is None:
            is_valid = torch.ones(len(draft.tokens), draft.width + 1, dtype=torch.bool, device=num_accepted.device)
        num_valid = is_valid.long().cumprod(1).sum(1, keepdim=True)
        counts = [draft.num_tokens[:, None], num_accepted, num_valid, verdict.next_token[:, None]]
        of_draft = [] if acceptance_prob is None else [draft.tokens, in_units(acceptance_prob)]
        more = [*([] if path is None else [path]), *([] if verdict.chances is None else [in_units(verdict.chances)])]
        read = torch.cat([*counts, *of_draft, *more], 1).tolist()
        self.tokens.scatter_(1, (self.lengths + verdict.num_accepted)[:, None], verdict.next_token[:, None])
        self.lengths = self.lengths + verdict.num_accepted + 1
        round = Round(list(self.rows), [], [], [], [])
        if verdict.chances is not None:
            round.chances = sum(row[-2] for row in read) / UNIT, sum(row[-1] for row in read) / UNIT
        self.path, self.host_path = path, None if path is None else []
        for row, (num_proposed, num_kept, limit, next_token, *rest) in enumerate(read):
            tokens, chances, nodes = rest[: draft.width], rest[draft.width :][: draft.width], rest[2 * draft.width :]
            if self.host_path is not None:
                self.host_path.append(nodes[:num_kept])
                chances = chances[:num_kept]
            new = [*tokens[:num_kept], next_token]
            self.host_lengths[row] += num_kept + 1
            self.history[row] += new
            round.tokens.append(new[:limit] + [NO_TOKEN] * (num_kept + 1 - limit))
            round.num_drafted.append(num_proposed)
            round.num_from_draft.append(num_kept)
            round.acceptance_prob.append([n / UNIT for n in chances[:num_proposed]])
        self.is_unread, self.tree = False, None
        return round

    def replace_tail(self, starts: list[int], tails: list[list[int]]) -> None:
        """Each row keeps its first `starts[b]` columns, padding included, and goes on with `tails[b]`."""
        width = max(map(len, tails))
        self.reserve(max(starts) + width + 1)
        packed = [[s, s + len(t), *t, *[0] * (width - len(t))] for s, t in zip(starts, tails, strict=True)]
        first, lengths, tokens = uploaded(packed, self.tokens.device).split([1, 1, width], 1)
        self.tokens.scatter_(1, first + torch.arange(width, device=self.tokens.device), tokens)
        self.lengths = lengths[:, 0]
        for row, (start, tail) in enumerate(zip(starts, tails, strict=True)):
            self.host_lengths[row] = start + len(tail)
            del self.history[row][start - self.host_padding[row] :]
            self.history[row] += tail

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        index = uploaded(indices, self.tokens.device, torch.long)
        self.tokens, self.lengths, self.padding = self.tokens[index], self.lengths[index], self.padding[index]
        self.rows = [self.rows[i] for i in indices]
        self.host_lengths = [self.host_lengths[i] for i in indices]
        self.host_padding = [self.host_padding[i] for i in indices]
        self.history = [list(self.history[i]) for i in indices]

    def part(self, indices: Sequence[int]) -> Batch:
        """These rows as a batch of their own, without a draft."""
        part = copy.copy(self)
        part.tree = part.path = part.host_path = None
        part.select(list(indices))
        return part

    def wait_beyond(self, num_rows: int, order: list[int]) -> None:
        """Only the first `num_rows` rows of `order` run; the others wait until a row is done."""
        self.waiting = self.part(order[num_rows:])
        self.select(order[:num_rows])

    def newcomers(self, num_rows: int) -> Batch | None:
        """The next `num_rows` rows that wait, or as many as there are, as a batch of their own; `None` without any."""
        if num_rows == 0 or self.waiting is None or not self.waiting.rows:
            return None
        indices = list(range(len(self.waiting.rows)))
        newcomers = self.waiting.part(indices[:num_rows])
        self.waiting.select(indices[num_rows:])
        if self.shares_prefixes:
            newcomers.prefixes = shared_prefixes(self.history, newcomers.history)
        return newcomers

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers` takes the place of the row at `lanes[i]`, which is done."""
        width = newcomers.tokens.shape[1]
        self.reserve(width + 1)  # and the token that the target will add
        index = uploaded(lanes, self.tokens.device)
        self.tokens[index, :width] = newcomers.tokens
        self.lengths = self.lengths.index_copy(0, index, newcomers.lengths)
        self.padding = self.padding.index_copy(0, index, newcomers.padding)
        for i, lane in enumerate(lanes):
            self.rows[lane] = newcomers.rows[i]
            self.host_lengths[lane] = newcomers.host_lengths[i]
            self.host_padding[lane] = newcomers.host_padding[i]
            self.history[lane] = newcomers.history[i]


def columns_from(first: Tensor, width: int) -> Tensor:
    """`(batch, width)`: columns `first (batch,)` and those after it, of rows with their own lengths."""
    columns = first[:, None]
    return columns if width == 1 else columns + torch.arange(width, device=first.device)


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes in one round: a chain of tokens, or a tree of them.

    Attributes:
        tokens: `(batch, k)` int64 proposed token ids; what stands beyond a row's `num_tokens` is filler.
        probs: `(batch, k, vocab)` float32, the distribution each token was *really* drawn from, or `None` for a deterministic
            proposal, whose distribution is one-hot. Of a tree's siblings, each given those before it: without replacement, q
            without these, normalised; zeros where nothing was left to draw.
        num_tokens: `(batch,)` int64, how many of the `k` tokens each row really proposes.
        parents: `(batch, k)` int64, the token that each token follows, -1 for the row's newest one, parents first. `None` for a
            chain. Only where `Drafter.may_branch`.
        depth: tokens on the longest path of a tree, as far as the host knows; `None`: as many as there are.
        likeliest_of: `(batch, k, vocab)` of a chain without `probs`: what its tokens are the likeliest of, for `Verdict`.
    """

    tokens: Tensor
    probs: Tensor | None
    num_tokens: Tensor
    parents: Tensor | None = None
    depth: int | None = None
    likeliest_of: Tensor | None = None

    @cached_property
    def tree(self) -> Tree | None:
        """`None` for a chain."""
        if self.parents is None or self.width == 0:
            return None
        return Tree(self.parents, self.width if self.depth is None else min(self.depth, self.width))

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    def tree_for(self, plan: list[int], may_branch: bool) -> Tree | None:
        """`tree`, of a draft that keeps to what was asked for.

        Raises:
            ValueError: it does not: more tokens than `plan` has for any row, or a tree where the call takes none.
        """
        if self.width > max(plan):
            raise ValueError(f"the drafter proposed {self.width} tokens a row where {max(plan)} were asked for.")
        if self.tree is not None and not may_branch:
            raise ValueError("the drafter proposed a tree where `may_branch` is False: it may propose chains only.")
        return self.tree

    @staticmethod
    def empty(batch: Batch) -> Draft:
        """No proposal at all: the round is then one step of plain decoding."""
        tokens = batch.tokens.new_empty(len(batch.rows), 0)
        return Draft(tokens, None, batch.tokens.new_zeros(len(batch.rows)))

    @staticmethod
    def of(batch: Batch, proposals: Sequence[Sequence[int]]) -> Draft:
        """A deterministic proposal: the tokens of each row."""
        width = max(map(len, proposals))
        packed = [[len(tokens), *tokens, *[0] * (width - len(tokens))] for tokens in proposals]
        num_tokens, tokens = uploaded(packed, batch.tokens.device).split([1, width], 1)
        return Draft(tokens, None, num_tokens[:, 0])

    def dense_probs(self, like: Tensor) -> Tensor:
        """`probs` with a one-hot distribution written out, as wide and of the type of `like`."""
        if self.probs is None:
            return torch.zeros_like(like[:, : self.width]).scatter_(2, self.tokens[..., None], 1.0)
        more = like.shape[2] - self.probs.shape[2]
        return functional.pad(self.probs, (0, more)) if more else self.probs  # else a copy of all of it


def along_path(draft: Draft, verdict: Verdict, *of_positions: Any) -> tuple[Draft, Verdict, tuple[Any, ...]]:
    """The path of a tree that was kept, as a chain; of `of_positions (batch, k + 1, ...)`, what stands at its positions.

    On a CPU only as far as the longest path that was accepted: no distribution is copied for nothing.
    """
    path = verdict.path
    assert path is not None
    rows = torch.arange(len(path), device=path.device)[:, None]
    acceptance_prob = None if verdict.acceptance_prob is None else verdict.acceptance_prob[rows, path]
    chain = Draft(draft.tokens[rows, path], None, draft.num_tokens)
    verdict = replace(verdict, acceptance_prob=acceptance_prob)
    if path.device.type == "cpu":
        path = path[:, : int(verdict.num_accepted.max())]
        if bool((path == torch.arange(path.shape[1])).all()):
            return chain, verdict, tuple(values[:, : path.shape[1] + 1] for values in of_positions)
    positions = functional.pad(path + 1, (1, 0))
    return chain, verdict, tuple(values[rows, positions] for values in of_positions)
