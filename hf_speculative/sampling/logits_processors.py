"""Apply transformers' logits processors so that each position sees exactly its own prefix.

In plain `generate` a processor is called once a token with the whole batch. Here one pass gives several positions, rows
are at different lengths, and the draft looks ahead at tokens that may never be emitted. Each processor therefore gets one
of three treatments, in the order of the list:

* context-free ones (temperature, top-k, top-p, ...) take all rows and positions at once;
* transformers' own prefix-dependent ones, which have no memory, take all of them at once as well (`stateless.py`), and
  so does a grammar;
* anything else may have a memory: each row has copies of its own, called once per emitted token and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ..grammar.processor import GrammarProcessor
from ..hf_compat import logits_process as hf
from ..types import Batch, Few, Guide
from .guidance import Guidance
from .likeliest import few_of, top_k_then_p, top_p
from .stateful import Memories
from .stateless import MEMORYLESS, Prefixes

CONTEXT_FREE = (
    *(hf.TemperatureLogitsWarper, hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.TopHLogitsWarper, hf.MinPLogitsWarper),
    *(hf.TypicalLogitsWarper, hf.EpsilonLogitsWarper, hf.EtaLogitsWarper),
    *(hf.InfNanRemoveLogitsProcessor, hf.LogitNormalization, hf.SuppressTokensLogitsProcessor),
)
#: rounds until few tokens are looked for again, after a round that had many
REST = 8
#: what leaves few tokens
FILTERS = [hf.TopKLogitsWarper], [hf.TopPLogitsWarper], [hf.TopKLogitsWarper, hf.TopPLogitsWarper]


class Processors:
    """A `LogitsProcessorList` for rows of their own length.

    Args:
        processors: what `generate` prepared.
        batch_size: rows of the call, as many as a processor saw in plain `generate`.
        criteria: the user's own stopping criteria.
    """

    def __init__(self, processors, batch_size: int, criteria: Sequence = ()):
        self.guidance: Guidance | None = None
        self.num_resting = 0
        if processors and type(processors[0]) is hf.UnbatchedClassifierFreeGuidanceLogitsProcessor:
            self.guidance, processors = Guidance(processors[0]), processors[1:]
        with_memory = [p for p in processors if type(p) not in WITHOUT_MEMORY]
        self.memories = Memories(with_memory, batch_size, list(criteria))
        self.steps: list[Any] = []
        self.errors: dict[tuple[int, int], Exception] = {}
        for before, processor in zip([None, *processors], processors, strict=False):
            if type(processor) not in WITHOUT_MEMORY:
                self.steps.append(StatefulProcessor(processor, self.memories))
            elif (type(before), type(processor)) == (hf.TopKLogitsWarper, hf.TopPLogitsWarper):
                self.steps[-1] = ContextFree(before, processor)
            else:
                self.steps.append(WITHOUT_MEMORY[type(processor)](processor))

    @property
    def settings(self) -> Hashable | None:
        """Which processors there are, with their numbers, if no prefix and no tensor has a say; else `None`."""
        context_free = [step for step in self.steps if type(step) is ContextFree]
        processors = [processor for step in context_free for processor in step.processors]
        settings = [(type(processor), *vars(processor).items()) for processor in processors]
        values = [value for _, *items in settings for _, value in items]
        is_plain = all(value is None or isinstance(value, (bool, int, float, str)) for value in values)
        is_alone = len(context_free) == len(self.steps) and self.guidance is None
        return ("processors", *settings) if is_alone and is_plain else None

    @cached_property
    def forbidden(self) -> list[Tensor] | None:
        """Tokens that the processors do no more than forbid, sometimes or always; `None`: they may do more."""
        tokens = [getattr(step, "forbidden", None) for step in self.steps]  # guidance is of the target's scores alone
        known = [one.flatten() for one in tokens if one is not None]
        return known if len(known) == len(tokens) else None

    def guides(self, prompts: Sequence[list[int]]) -> Callable[[int], Guide | None]:
        """What a grammar says of the tokens of each row, whose prompts these are."""
        grammars = [step.processor for step in self.steps if isinstance(step, AfterEachPrefix)]
        for grammar in grammars:
            grammar.begin([len(prompt) for prompt in prompts])
        return grammars[0].walks.get if grammars else lambda row: None

    @cached_property
    def few_after(self) -> tuple[list, list] | None:
        """Temperatures, and the filters that leave few tokens, if these are all processors."""
        processors = [one for step in self.steps for one in getattr(step, "processors", [step])]
        scaling = [*takewhile(lambda one: type(one) is hf.TemperatureLogitsWarper, processors)]
        filters = processors[len(scaling) :]
        return (scaling, filters) if [type(one) for one in filters] in FILTERS and self.guidance is None else None

    def narrowed(self, logits: Tensor) -> Few | None:
        """What is left of `logits (batch, n, vocab)`, if that is known to be few tokens."""
        self.num_resting = max(0, self.num_resting - 1)
        # A single position is as fast in the common way.
        if self.few_after is None or self.num_resting or logits.shape[:2].numel() == 1:
            return None
        found = few_of(*self.few_after, logits.flatten(0, 1), lambda rows: self._apply(None, rows[None].float())[0])
        if found is None:
            self.num_resting = REST
            return None
        return replace(found, values=found.values.unflatten(0, logits.shape[:2]))

    @property
    def write_in_place(self) -> bool:
        """Some of them may write into the scores that they are given."""
        return any(type(step) is not ContextFree for step in self.steps)

    @property
    def keeps_rows_together(self) -> bool:
        """All rows have to start together: guidance has a cache with one length for all of them."""
        return self.guidance is not None

    @property
    def takes_trees(self) -> bool:
        """Guidance reads chains, and a processor that is never copied is called along one."""
        return self.guidance is None and not (self.have_memory and self.memories.keeps_set)

    @property
    def have_memory(self) -> bool:
        """Some of them, whose calls a draft has to make in the order of a chain."""
        return bool(self.memories.originals)

    def __call__(self, batch: Batch, scores: Tensor, ahead: int, is_draft: bool) -> Tensor:
        """Process `scores (batch, n, vocab)`; position i follows the tokens up to `ahead + i` beyond each row's length.

        In a tree: position 0 comes before its first node, the others after one each.
        """
        if self.guidance is not None and not is_draft:
            scores = self.guidance(batch, scores)
        prefixes = Prefixes(batch, scores.shape[1], ahead, is_draft)
        if not is_draft:
            self.errors = prefixes.errors
        if not any(isinstance(step, OneByOne) for step in self.steps):
            return self._apply(prefixes, scores)
        columns: list[Tensor] = []
        self.memories.begin_pass(batch, is_draft)
        for i in range(prefixes.num_positions):
            prefix = prefixes.at(i)
            prefix.reached = prefixes.reached_at(i, columns)
            self.memories.begin_position(prefix, i)
            columns.append(self._apply(prefix, scores[:, i : i + 1]))
            self.memories.end_position(prefix)
        return torch.cat(columns, 1)

    def _apply(self, prefixes: Prefixes | None, scores: Tensor) -> Tensor:
        for step in self.steps:
            scores = step(prefixes, scores)
        return scores

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        """The round emitted `num_tokens[b]` tokens in row b: memories move on by as many calls, and no further.

        What a processor raised for one of these is raised now; behind them, the text may have come to a stop.
        """
        for (lane, position), error in self.errors.items():
            path = range(num_tokens[lane]) if batch.host_path is None else batch.host_path[lane]
            if position - 1 in path[: max(0, num_tokens[lane] - 1)]:
                raise error
        if self.guidance is not None:
            self.guidance.commit(batch)
        if self.have_memory:
            self.memories.commit(batch, num_tokens)


class ContextFree:
    """A processor that looks at no prefix, or top-k with the top-p that follows it."""

    def __init__(self, *processors):
        self.processors = processors
        self.forbidden: Tensor | None = getattr(processors[0], "suppress_tokens", None)

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        of_all, processor = scores.flatten(0, 1), self.processors[-1]
        if len(self.processors) == 2:
            return top_k_then_p(*self.processors, of_all).view_as(scores)
        if type(processor) in (hf.TopHLogitsWarper, hf.EtaLogitsWarper):  # which raise where a draft has nothing to say
            is_some = of_all.amax(-1, keepdim=True).isfinite()
            return torch.where(is_some, processor(None, of_all.where(is_some, 0.0)), of_all).view_as(scores)
        is_top_p = type(processor) is hf.TopPLogitsWarper
        return (top_p(processor, of_all) if is_top_p else processor(None, of_all)).view_as(scores)


class AfterEachPrefix:
    """A grammar for rows of their own length and all positions of a chain or tree.

    Args:
        processor: of the call; `GrammarProcessor.begin` has told it of the rows.
    """

    def __init__(self, processor: GrammarProcessor):
        self.processor = processor

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        positions = range(prefixes.first, prefixes.first + prefixes.num_positions)
        for lane, (row, text) in enumerate(zip(prefixes.batch.rows, prefixes.batch.history, strict=True)):
            walk, paths = self.processor.walks[row], prefixes.host_paths[lane]
            # In the order of the paths a tree is walked once.
            for place in sorted(positions, key=paths.__getitem__):
                walk.mask(text, paths[place]).apply(scores[lane, place - prefixes.first])
        return scores


class OneByOne:
    """A processor that is called for each row and position, where plain decoding may come to it."""

    def process(self, row: int, ids: Tensor, scores: Tensor) -> Tensor:
        """Of `scores (1, vocab)` after `ids (1, width)`: `(vocab,)`."""
        raise NotImplementedError

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        processed, tokens = scores.clone(), prefixes.last(prefixes.longest)
        for lane, (row, [width]) in enumerate(zip(prefixes.batch.rows, prefixes.widths.tolist(), strict=True)):
            if prefixes.reached[lane]:
                ids = tokens[lane, :, prefixes.longest - width :]
                try:
                    processed[lane, 0] = self.process(row, ids, scores[lane])
                except Exception as error:
                    if not prefixes.host_paths[lane][prefixes.first]:  # after the text itself
                        raise
                    prefixes.reached[lane] = False  # nor what follows
                    prefixes.errors[lane, prefixes.first] = error
        return processed


class StatefulProcessor(OneByOne):
    """One processor with a memory. Each row has a copy of its own, see `Memories`.

    A row's copy is called with a batch as large as plain `generate`'s, in which every row is that one. A processor which
    indexes its memory by row then finds the right entry.
    """

    def __init__(self, processor, memories: Memories):
        self.memories, self.index = memories, memories.originals.index(processor)

    def process(self, row: int, ids: Tensor, scores: Tensor) -> Tensor:
        size = self.memories.batch_size
        memory = self.memories.of_row[row]
        processed = memory.current[self.index](ids.repeat(size, 1), scores.repeat(size, 1))[row]
        memory.calls[self.index] += 1
        return processed


class AllowedTokens(OneByOne):
    """`prefix_allowed_tokens_fn`, a function of the row and its prefix: it is asked, not copied."""

    def __init__(self, processor: hf.PrefixConstrainedLogitsProcessor):
        self.allowed = processor._prefix_allowed_tokens_fn

    def process(self, row: int, ids: Tensor, scores: Tensor) -> Tensor:
        return hf.PrefixConstrainedLogitsProcessor(lambda _, ids: self.allowed(row, ids), num_beams=1)(ids, scores)[0]


def at_prompts(processor: hf.WhisperNoSpeechDetection, prefixes: Prefixes, scores: Tensor) -> Tensor:
    """Whisper's detector of silence: it looks at what follows the prompts, of all rows, and changes nothing."""
    if prefixes.batch.is_unread and not prefixes.is_draft:
        processor(prefixes.last(prefixes.longest)[:, 0], scores[:, 0])
    return scores


#: treatments by exact type: a subclass of a known processor may remember things
WITHOUT_MEMORY: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(CONTEXT_FREE, ContextFree),
    **MEMORYLESS,
    GrammarProcessor: AfterEachPrefix,
    hf.WhisperNoSpeechDetection: lambda p: partial(at_prompts, p),
    hf.PrefixConstrainedLogitsProcessor: AllowedTokens,
}
