"""A model that reads the first and the last tokens of each row, so that its cache and its passes do not grow with the text.

Xiao et al. 2023 (arXiv 2309.17453): the first tokens, which draw much of all attention, and those of a window, at positions
that are counted without what lies between them.
"""

import copy
from collections.abc import Hashable

import torch
from torch import Tensor

from ..forwarding import forwards_to
from ..interfaces import CachedModel
from ..types import Batch, uploaded
from .ragged import RaggedModel

#: first tokens of a row that are always read (arXiv 2309.17453, section 3.2)
NUM_FIRST = 4


@forwards_to("model")
class WindowedModel(CachedModel):
    """`model`, which reads up to `window` tokens of a row.

    A row that has more goes on with its first tokens and the last half of a window, which is read again: one token more for
    each that the row gets.

    Attributes:
        skipped: tokens of each row between those that it reads.
    """

    window: int

    def __init__(self, model: RaggedModel, window: int):
        self.model, self.window = model, window
        self.skipped: list[int] = []

    def reset(self) -> None:
        self.skipped = []
        self.model.reset()

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        return self.model.logits(self._moved(batch, ahead), ahead, num_last)

    def drafts_at_once(self, batch: Batch) -> bool:
        return self.model.drafts_at_once(self._moved(batch))

    def draft(self, batch: Batch, num_tokens: int, draw, settings: Hashable) -> tuple[Tensor, Tensor | None]:
        return self.model.draft(self._moved(batch), num_tokens, draw, settings)

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        return self.model.greedy_chain(self._moved(batch), num_tokens, vocab_size)

    def rollback(self, batch: Batch) -> None:
        if self.skipped:
            self.model.rollback(self._seen_of(batch, self.skipped))

    def select(self, indices: list[int]) -> None:
        self.skipped = [self.skipped[i] for i in indices] if self.skipped else []
        self.model.select(indices)

    def prefill(self, batch: Batch) -> None:
        self.model.prefill(self._moved(batch))

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.skipped:  # else the first pass is still to come, and reads all rows
            skipped = self._skipped_of(newcomers, [0] * len(lanes))
            self.model.admit(self._seen_of(newcomers, skipped), lanes)
            for lane, num in zip(lanes, skipped, strict=True):
                self.skipped[lane] = num

    def forget(self, lanes: list[int]) -> None:
        for lane in lanes if self.skipped else []:
            self.skipped[lane] = 0
        self.model.forget(lanes)

    def _moved(self, batch: Batch, ahead: int = 0) -> Batch:
        """What the model sees of `batch` and of `ahead` draft tokens; windows that are full have moved on."""
        before = self.skipped or [0] * len(batch.rows)
        self.skipped = self._skipped_of(batch, before)
        if self.skipped != before:
            kept = self._seen_of(batch, before)
            rows = zip(kept.host_padding, kept.host_lengths, self.skipped, before, strict=True)
            # The newest token has not been read.
            lengths = [pad + NUM_FIRST + 1 if now > then else length for pad, length, now, then in rows]
            kept.host_lengths, kept.lengths, kept.path = lengths, uploaded(lengths, kept.lengths.device), None
            self.model.rollback(kept)
        return self._seen_of(batch, self.skipped, ahead)

    def _skipped_of(self, batch: Batch, skipped: list[int]) -> list[int]:
        """The same; once a row has more than a window, more for all long rows: a pass is as wide as its widest."""
        lengths = [length - pad for length, pad in zip(batch.host_lengths, batch.host_padding, strict=True)]
        if max(length - num for length, num in zip(lengths, skipped, strict=True)) <= self.window:
            return skipped
        half = (self.window + NUM_FIRST) // 2
        return [max(num, length - half) for length, num in zip(lengths, skipped, strict=True)]

    def _seen_of(self, batch: Batch, skipped: list[int], ahead: int = 0) -> Batch:
        """`batch` without the tokens that were skipped, and those from `ahead` places ahead on."""
        seen = copy.copy(batch)
        seen.prefixes, seen.max_length = (), min(batch.max_length, max(batch.host_padding) + self.window)
        if not any(skipped):
            return seen
        num = uploaded(skipped, batch.tokens.device)
        seen.host_lengths = [length - n for length, n in zip(batch.host_lengths, skipped, strict=True)]
        seen.lengths = batch.lengths - num
        columns = torch.arange(max(seen.host_lengths) + ahead, device=num.device)
        is_later = columns >= batch.padding[:, None] + NUM_FIRST
        columns = (columns + is_later * num[:, None]).clamp(max=batch.tokens.shape[1] - 1)
        seen.tokens = batch.tokens.gather(1, columns)
        return seen
