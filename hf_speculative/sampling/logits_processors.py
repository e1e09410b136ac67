"""transformers' logits processors, applied so that each position sees exactly its own prefix.

In plain `generate` a processor is called once a token with the whole batch. Here one pass gives several positions, rows
are at different lengths, and the draft looks ahead at tokens that may never be emitted. Each processor therefore gets one
of three treatments, in the order of the list:

* context-free ones (temperature, top-k, top-p, ...) take all rows and positions at once;
* transformers' own prefix-dependent ones, which have no memory, are called once for all prefixes of one length;
* anything else may have a memory: each row has copies of its own, called once per emitted token and in order.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from ..types import Batch
from .copying import CannotCopy, clone
from .guidance import Guidance
from .memory import UsersOwn

CONTEXT_FREE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.TopHLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.InfNanRemoveLogitsProcessor,
    hf.LogitNormalization,
    hf.SuppressTokensLogitsProcessor,
)
MEMORYLESS = (
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.RepetitionPenaltyLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.WatermarkLogitsProcessor,
)


class Processors:
    """A `LogitsProcessorList` for rows of their own length.

    Args:
        processors: what `generate` prepared.
        batch_size: rows of the call, as many as a processor saw in plain `generate`.
    """

    def __init__(self, processors, batch_size: int):
        self.guidance: Guidance | None = None
        if processors and type(processors[0]) is hf.UnbatchedClassifierFreeGuidanceLogitsProcessor:
            self.guidance, processors = Guidance(processors[0]), processors[1:]
        with_memory = [p for p in processors if type(p) not in (*CONTEXT_FREE, *MEMORYLESS)]
        self.memories = Memories(with_memory, batch_size)
        self.steps = [self._treatment(processor) for processor in processors]

    @property
    def settings(self) -> Hashable | None:
        """Which processors there are, with their numbers, if no prefix and no tensor has a say; else `None`."""
        settings = [
            (type(step.processor), *vars(step.processor).items()) for step in self.steps if type(step) is ContextFree
        ]
        values = [value for _, *items in settings for _, value in items]
        is_plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values)
        is_alone = len(settings) == len(self.steps) and self.guidance is None
        return ("processors", *settings) if is_alone and is_plain else None

    @property
    def why_not_ahead(self) -> CannotCopy | None:
        """Why drafts cannot be processed ahead of what is emitted; `None` if they can."""
        return self.memories.why_not_ahead

    @property
    def keeps_rows_together(self) -> bool:
        """All rows have to start together: guidance has a cache with one length for all of them."""
        return self.guidance is not None

    def _treatment(self, processor):
        # By exact type: a subclass of a known processor may remember things.
        if type(processor) in CONTEXT_FREE:
            return ContextFree(processor)
        return Memoryless(processor) if type(processor) in MEMORYLESS else Remembering(processor, self.memories)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
        """Process `scores (batch, n, vocab)`; position i follows the tokens up to `ahead + i` beyond each row's length."""
        if self.guidance is not None and not is_draft:
            scores = self.guidance(batch, scores)
        if not self.memories.originals:
            return self._apply(batch, scores, ahead)
        self.memories.begin_pass(batch, is_draft)
        columns = []
        for i in range(scores.shape[1]):
            columns.append(self._apply(batch, scores[:, i : i + 1], ahead + i))
            self.memories.end_position(batch)
        return torch.cat(columns, 1)

    def _apply(self, batch: Batch, scores: Tensor, ahead: int) -> Tensor:
        for step in self.steps:
            scores = step(batch, scores, ahead)
        return scores

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        """The round emitted `num_tokens[b]` tokens in row b: memories move on by as many calls, and no further."""
        if self.guidance is not None:
            self.guidance.commit(batch)
        if self.memories.originals:
            self.memories.commit(batch, num_tokens)


class ContextFree:
    def __init__(self, processor):
        self.processor = processor
        self.no_prefix = torch.empty(0, 0, dtype=torch.long)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int) -> Tensor:
        return self.processor(self.no_prefix, scores.flatten(0, 1)).view_as(scores)


class Memoryless:
    def __init__(self, processor):
        self.processor = processor

    def __call__(self, batch: Batch, scores: Tensor, ahead: int) -> Tensor:
        num_positions = scores.shape[1]
        if min(batch.host_lengths) == max(batch.host_lengths):
            columns = [
                self._process(batch, slice(None), batch.host_lengths[0] + ahead + i, scores[:, i])
                for i in range(num_positions)
            ]
            return torch.stack(columns, 1)
        prefixes = defaultdict(list)
        for b, length in enumerate(batch.host_lengths):
            for i in range(num_positions):
                prefixes[length + ahead + i].append((b, i))
        processed = torch.empty_like(scores)
        for width, places in prefixes.items():
            rows, positions = torch.tensor(places, device=scores.device).T
            processed[rows, positions] = self._process(batch, rows, width, scores[rows, positions])
        return processed

    def _process(self, batch: Batch, rows, width: int, scores: Tensor) -> Tensor:
        processor = self.processor
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):  # repetition penalty: how much padding to skip, one entry a row of the call
            processor = copy.copy(processor)
            row_of_call = torch.tensor(batch.rows, device=ignored.device)
            processor.prompt_ignore_length = ignored[row_of_call][rows]
        return processor(batch.tokens[rows, :width], scores)


class Remembering:
    """One processor with a memory. Each row has a copy of its own, see `Memories`.

    A row's copy is called with a batch as large as plain `generate`'s in which every row is that one, so that a processor
    which indexes its memory by row finds the right entry.
    """

    def __init__(self, processor, memories: Memories):
        self.memories, self.index = memories, memories.originals.index(processor)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int) -> Tensor:
        processed = torch.empty_like(scores)
        for b, row in enumerate(batch.rows):
            ids = batch.tokens[b, None, : batch.host_lengths[b] + ahead].expand(self.memories.batch_size, -1)
            position = scores[b].repeat(self.memories.batch_size, 1)
            processed[b, 0] = self.memories.current[row][self.index](ids, position)[row]
        return processed


class Memories:
    """The processors with a memory: a set of copies for each row, and what they remembered after each position of a round.

    Drafts and verification work on copies of a row's set; `commit` keeps the one after the last emitted token. If all of
    them can take calls back, by a `rollback(num_calls)` method, a row's set is never copied within a round. Processors that
    cannot be copied are called themselves, which serves one row and no drafts: see `can_look_ahead`.

    Raises:
        CannotCopy: one of them cannot be copied, and there are several rows.
    """

    def __init__(self, originals: list, batch_size: int):
        self.originals, self.batch_size = originals, batch_size
        self.can_rollback = all(hasattr(processor, "rollback") for processor in originals)
        self.users: UsersOwn | None = None
        self.why_not_ahead: CannotCopy | None = None
        if originals and not (self.can_rollback and batch_size == 1):
            try:
                self.users = UsersOwn(originals, "logits_processor")
            except CannotCopy as error:
                if batch_size > 1:
                    raise
                self.why_not_ahead = error
        self.keeps_set = self.can_rollback or self.why_not_ahead is not None
        self.committed: dict[int, list] = {}
        self.current: dict[int, list] = {}
        self.after: dict[int, list[list]] = {}
        self.num_calls: dict[int, int] = defaultdict(int)
        self.is_drafting = False

    def begin_pass(self, batch: Batch, is_draft: bool) -> None:
        if is_draft and self.is_drafting:
            return  # the draft goes on where it was
        for row in self.committed.keys() - {0, *batch.rows}:  # done; the first row's are still shown
            del self.committed[row], self.current[row], self.num_calls[row]
        if self.users is not None:
            self.users.hand_out(self.committed.values())
        for row in batch.rows:
            if row not in self.committed:
                self.committed[row] = self.originals if self.users is None else clone(self.users.copies)
            self._take_back(row, self.num_calls[row])
            self.current[row] = self.committed[row] if self.keeps_set else clone(self.committed[row])
            self.after[row] = []
        self.is_drafting = is_draft

    def end_position(self, batch: Batch) -> None:
        for row in batch.rows:
            self.num_calls[row] += 1
            if not self.is_drafting and not self.keeps_set:
                self.after[row].append(clone(self.current[row]))

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        for row, num in zip(batch.rows, num_tokens, strict=True):
            if not self.keeps_set:
                self.committed[row] = self.after.pop(row)[num - 1]
            self._take_back(row, self.num_calls[row] - num)
            self.num_calls[row] = 0
        self.is_drafting = False
        if self.users is not None:
            self.users.show(self.committed[0])  # the user's own objects show the memory of the call's first row

    def _take_back(self, row: int, num_calls: int) -> None:
        if self.can_rollback and num_calls:
            for processor in self.committed[row]:
                processor.rollback(num_calls)
        self.num_calls[row] = 0
