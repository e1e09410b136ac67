"""The sequences being generated, and where each of them is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from .types import Draft, Verdict


class Prompt:
    """A call's prompt as the host knows it: read from the device once, for all that is decided before the first pass.

    Args:
        input_ids: `(batch, width)`.
        attention_mask: likewise; `None`, or one of another shape, hides nothing.

    Attributes:
        history: the ids of each row without those that the mask hides.
        padding: how many it hides in each row.
        is_left_padded: it hides nothing but left padding, and none of the rows as a whole.
    """

    def __init__(self, input_ids: Tensor, attention_mask: Tensor | None):
        if attention_mask is None or attention_mask.shape != input_ids.shape:
            attention_mask = torch.ones_like(input_ids)
        ids, seen = torch.stack([input_ids.long(), attention_mask.to(input_ids.device).bool().long()]).tolist()
        self.history = [list(compress(*row)) for row in zip(ids, seen, strict=True)]
        self.padding = [row.count(0) for row in seen]
        ends = [row[pad:] for row, pad in zip(seen, self.padding, strict=True)]
        width = input_ids.shape[1]
        self.is_left_padded = all(map(all, ends)) and (width == 0 or all(ends))


#: in the place of a token that was drawn from what is no distribution
NO_TOKEN = -1
#: a probability of 1 where it is read from the device as a whole number
UNIT = 2**24


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
            history = [ids[pad:] for ids, pad in zip(input_ids.tolist(), self.host_padding, strict=True)]
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
