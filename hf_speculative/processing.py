"""transformers' logits processors, applied so that each position sees exactly its own prefix.

In plain `generate` a processor is called once a token with the whole batch. Here one pass gives several positions, rows
are at different lengths, and the draft looks ahead at tokens that may never be emitted. Each processor therefore gets one
of three treatments, in the order of the list:

* context-free ones (temperature, top-k, top-p, ...) take all rows and positions at once;
* transformers' own prefix-dependent ones, which have no memory, are called once for all prefixes of one length;
* anything else may have a memory: each row has its own copy, called once per emitted token and in order.
"""

from __future__ import annotations

import copy
from collections import defaultdict

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.generation import logits_process as hf

from .types import Batch

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


def clone(part):
    """An independent copy of a processor or criterion: its own `clone()` where it has one, else a deep copy.

    Models and tokenizers inside it are shared: they are large, and generation does not change them.
    """
    if hasattr(part, "clone"):
        return part.clone()
    shared = (nn.Module, PreTrainedTokenizerBase)
    memo = {id(value): value for value in getattr(part, "__dict__", {}).values() if isinstance(value, shared)}
    return copy.deepcopy(part, memo)


class Processors:
    """A `LogitsProcessorList` for rows of their own length.

    Args:
        processors: what `generate` prepared.
        batch_size: rows of the call, as many as a processor saw in plain `generate`.
    """

    def __init__(self, processors, batch_size: int):
        self.steps = [self._treatment(processor, batch_size) for processor in processors]

    @staticmethod
    def _treatment(processor, batch_size: int):
        # By exact type: a subclass of a known processor may remember things.
        if type(processor) in CONTEXT_FREE:
            return ContextFree(processor)
        return Memoryless(processor) if type(processor) in MEMORYLESS else Remembering(processor, batch_size)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
        """Process `scores (batch, n, vocab)`; position i follows the tokens up to `ahead + i` beyond each row's length."""
        for step in self.steps:
            scores = step(batch, scores, ahead, is_draft)
        return scores

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        """The round emitted `num_tokens[b]` tokens in row b: memories move on by as many calls, and no further."""
        for step in self.steps:
            step.commit(batch, num_tokens)


class ContextFree:
    def __init__(self, processor):
        self.processor = processor
        self.no_prefix = torch.empty(0, 0, dtype=torch.long)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
        return self.processor(self.no_prefix, scores.flatten(0, 1)).view_as(scores)

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        pass


class Memoryless(ContextFree):
    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
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
    """One copy of the processor a row; drafts and verification run on copies of that copy.

    A row's copy is called with a batch as large as plain `generate`'s in which every row is that one, so that a
    processor which indexes its memory by row finds the right entry. A processor that can take calls back offers
    `rollback(num_calls)` and is then never copied within a round.
    """

    def __init__(self, processor, batch_size: int):
        self.original, self.batch_size = processor, batch_size
        self.can_rollback = hasattr(processor, "rollback")
        self.committed: dict[int, object] = {}
        self.drafting: dict[int, object] = {}
        self.verified: dict[int, list] = {}
        self.num_draft_calls: dict[int, int] = defaultdict(int)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
        processed = torch.empty_like(scores)
        for b, row in enumerate(batch.rows):
            memory = self._draft_memory(row) if is_draft else self._target_memory(row)
            for i in range(scores.shape[1]):
                ids = batch.tokens[b, None, : batch.host_lengths[b] + ahead + i].expand(self.batch_size, -1)
                position = scores[b, None, i].repeat(self.batch_size, 1)
                processed[b, i] = memory(ids, position)[row]
                if is_draft:
                    self.num_draft_calls[row] += 1
                elif self.can_rollback:
                    self.verified[row].append(None)
                else:
                    self.verified[row].append(clone(memory))
        return processed

    def _memory(self, row: int):
        if row not in self.committed:
            self.committed[row] = self.original if self.batch_size == 1 else clone(self.original)
        return self.committed[row]

    def _draft_memory(self, row: int):
        if self.can_rollback:
            return self._memory(row)
        if row not in self.drafting:
            self.drafting[row] = clone(self._memory(row))
        return self.drafting[row]

    def _target_memory(self, row: int):
        self.verified[row] = []
        if self.can_rollback:
            self._memory(row).rollback(self.num_draft_calls.pop(row, 0))
            return self._memory(row)
        return clone(self._memory(row))

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        for row, num in zip(batch.rows, num_tokens, strict=True):
            states = self.verified.pop(row)
            if self.can_rollback:
                self._memory(row).rollback(len(states) - num)
            else:
                self.committed[row] = states[num - 1]
        self.drafting.clear()
        self.num_draft_calls.clear()
        state = getattr(self.committed.get(0), "__dict__", None)
        if state is not None and self.committed[0] is not self.original:
            # The user's own object shows the memory of the call's first row.
            self.original.__dict__.update(state)
