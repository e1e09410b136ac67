"""transformers' logits processors, applied so that each position sees exactly its own prefix.

In plain `generate` a processor is called once a token with the whole batch. Here one pass gives several positions, rows
are at different lengths, and the draft looks ahead at tokens that may never be emitted. Each processor therefore gets one
of three treatments, in the order of the list:

* context-free ones (temperature, top-k, top-p, ...) take all rows and positions at once;
* transformers' own prefix-dependent ones, which have no memory, take all of them at once as well, see `stateless.py`, and
  so does a grammar, see `grammar.py`;
* anything else may have a memory: each row has copies of its own, called once per emitted token and in order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from ..grammar.processor import GrammarProcessor
from ..hf_compat import logits_process as hf
from ..types import Batch, Guide
from .copying import CannotCopy, clone
from .grammar import AfterEachPrefix
from .guidance import Guidance
from .prefixes import Prefixes
from .stateful import StatefulProcessors
from .stateless import MEMORYLESS
from .top_p import top_p

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
        with_memory = [p for p in processors if type(p) not in (*CONTEXT_FREE, *MEMORYLESS, GrammarProcessor)]
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

    @property
    def lookahead_unsupported_reason(self) -> CannotCopy | None:
        """Why drafts cannot be processed ahead of what is emitted; `None` if they can."""
        return self.memories.lookahead_unsupported_reason

    @property
    def draft_may_follow(self) -> bool:
        """Processors with a memory are first called, and copied, in a round without a draft."""
        return self.lookahead_unsupported_reason is None and (self.memories.has_begun or not self.have_memory)

    @property
    def keeps_rows_together(self) -> bool:
        """All rows have to start together: guidance has a cache with one length for all of them."""
        return self.guidance is not None

    def _treatment(self, processor):
        # By exact type: a subclass of a known processor may remember things.
        if type(processor) in CONTEXT_FREE:
            return ContextFree(processor)
        if type(processor) is GrammarProcessor:
            return AfterEachPrefix(processor)
        stateless = MEMORYLESS.get(type(processor))
        return stateless(processor) if stateless else StatefulProcessor(processor, self.memories)

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
        prefixes = Prefixes(batch, scores.shape[1], ahead, tree=batch.tree)
        if not self.have_memory:
            return self._apply(prefixes, scores)
        columns: list[Tensor] = []
        for i in self.memories.positions(prefixes, is_draft, columns):
            columns.append(self._apply(prefixes.at(i), scores[:, i : i + 1]))
        return torch.cat(columns, 1)

    def _apply(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        for step in self.steps:
            scores = step(prefixes, scores)
        return scores

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        """The round emitted `num_tokens[b]` tokens in row b: memories move on by as many calls, and no further."""
        if self.guidance is not None:
            self.guidance.commit(batch)
        if self.have_memory:
            self.memories.commit(batch, num_tokens)


class ContextFree:
    def __init__(self, processor):
        self.processor = processor
        self.forbidden: Tensor | None = getattr(processor, "suppress_tokens", None)
        is_top_p = type(processor) is hf.TopPLogitsWarper
        self.process = (
            partial(top_p, processor) if is_top_p else partial(processor, torch.empty(0, 0, dtype=torch.long))
        )

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        return self.process(scores.flatten(0, 1)).view_as(scores)


class StatefulProcessor:
    """One processor with a memory. Each row has a copy of its own, see `Memories`.

    A row's copy is called with a batch as large as plain `generate`'s in which every row is that one, so that a processor
    which indexes its memory by row finds the right entry.
    """

    def __init__(self, processor, memories: Memories):
        self.memories, self.index = memories, memories.originals.index(processor)

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        processed, batch_size = torch.empty_like(scores), self.memories.batch_size
        tokens = prefixes.last(prefixes.longest)
        for lane, (row, [width]) in enumerate(zip(prefixes.batch.rows, prefixes.host_widths(), strict=True)):
            memory, processed[lane] = self.memories.of_row[row], scores[lane]
            if memory.is_reachable:
                ids = tokens[lane, :, prefixes.longest - width :].expand(batch_size, -1)
                processed[lane, 0] = memory.current[self.index](ids, scores[lane].repeat(batch_size, 1))[row]
        return processed


class Memory:
    """A row's copies of the processors with a memory, and what they remembered after each position of the target's pass.

    Attributes:
        committed: as after the last emitted token.
        current: as after the last position.
        after: snapshots, one a position; none if the set is never copied, which `rollback(num_calls)` takes back instead.
        is_reachable: the tokens before this position are allowed. What is not, a processor is never shown: it may raise.
    """

    is_reachable = True

    def __init__(self, copies: list, memories: Memories):
        self.committed, self.memories = copies, memories
        self.num_calls = 0

    def begin_pass(self) -> None:
        self.is_reachable = True
        self._take_back(self.num_calls)
        self.current = self.committed if self.memories.keeps_set else clone(self.committed)
        self.after: list[list] = []

    def end_position(self, is_draft: bool) -> None:
        self.num_calls += self.is_reachable
        if is_draft or self.memories.keeps_set:
            return
        try:
            self.after.append(clone(self.current))
        except CannotCopy as error:  # what it has made in its first call; nothing is drafted before
            self.memories.give_up(error)

    def go_to(self, position: int) -> None:
        """The next position follows this one, which need not be the last."""
        if position != len(self.after) - 1:
            self.current = clone(self.after[position])

    def commit(self, num_tokens: int, path: Sequence[int]) -> None:
        """So many positions on a path of draft tokens have become the row's own."""
        if self.after:
            self.committed = self.after[path[num_tokens - 2] + 1 if num_tokens > 1 else 0]
            self.after = []
        else:
            self.committed = self.current
        self._take_back(self.num_calls - num_tokens)

    def _take_back(self, num_calls: int) -> None:
        if self.memories.can_rollback and num_calls:
            for processor in self.committed:
                processor.rollback(num_calls)
        self.num_calls = 0


def _check_alike(processors: list, batch_size: int) -> None:
    """A row's copy is shown that row in the place of all, which a processor with a grammar for each row does not take.

    Raises:
        CannotCopy: this is one.
    """
    for processor in processors:
        if batch_size > 1 and len(getattr(processor, "compiled_grammars", ())) > 1:
            raise CannotCopy(
                f"`logits_processor`: {type(processor).__name__} holds a grammar for each row: give the list as `grammar=`."
            )


class Memories:
    """The processors with a memory: each row has a set of copies, see `Memory`.

    Drafts and verification work on copies of a row's set; `commit` keeps the one after the last emitted token. If all of
    them can take calls back, by a `rollback(num_calls)` method, a row's set is never copied within a round. Processors that
    cannot be copied are called themselves, which serves one row and no drafts: see `lookahead_unsupported_reason`.

    Attributes:
        has_begun: they were called, and copied as they are since.

    Raises:
        CannotCopy: one of them cannot be copied, and there are several rows.
    """

    has_begun = False

    def __init__(self, originals: list, batch_size: int):
        self.originals, self.batch_size = originals, batch_size
        self.can_rollback = all(hasattr(processor, "rollback") for processor in originals)
        self.users: StatefulProcessors | None = None
        self.lookahead_unsupported_reason: CannotCopy | None = None
        if originals and not (self.can_rollback and batch_size == 1):
            try:
                _check_alike(originals, batch_size)
                self.users = StatefulProcessors(originals, "logits_processor")
            except CannotCopy as error:
                if batch_size > 1:
                    raise
                self.lookahead_unsupported_reason = error
        self.keeps_set = self.can_rollback or self.lookahead_unsupported_reason is not None
        self.of_row: dict[int, Memory] = {}
        self.is_drafting = False

    def give_up(self, error: CannotCopy) -> None:
        """From now on each row's set is called once a token, and nothing is drafted."""
        if self.lookahead_unsupported_reason is None:
            self.lookahead_unsupported_reason, self.keeps_set = error, True
            warnings.warn(f"nothing is drafted in this call: {error}", stacklevel=2)

    def positions(self, prefixes: Prefixes, is_draft: bool, columns: list[Tensor]) -> Iterator[int]:
        """The positions in turn: at each, the rows' memories are those of what it follows.

        Args:
            columns: processed scores of the positions before, each `(batch, 1, vocab)`.
        """
        batch, tree = prefixes.batch, prefixes.tree
        if not (is_draft and self.is_drafting):  # else the draft goes on where it was
            self._begin_pass(batch)
        self.is_drafting = is_draft
        reached = [[True] for _ in batch.rows]
        for position in range(prefixes.num_positions):
            for lane, row in enumerate(batch.rows):
                if is_draft:
                    self.of_row[row].is_reachable = not batch.has_ended(lane, prefixes.first + position)
                if not position or is_draft:
                    continue
                parent = position - 1 if tree is None else tree.host_parents[lane][position - 1] + 1
                if tree is not None:
                    self.of_row[row].go_to(parent)
                token = batch.tokens[lane, batch.host_lengths[lane] + position - 1]
                is_allowed = columns[parent][lane, 0, token] > -torch.inf and int(token) not in batch.ends
                self.of_row[row].is_reachable = reached[lane][parent] and bool(is_allowed)
                reached[lane].append(self.of_row[row].is_reachable)
            yield position
            for row in batch.rows:
                self.of_row[row].end_position(is_draft)

    def _begin_pass(self, batch: Batch) -> None:
        for row in self.of_row.keys() - {0, *batch.rows}:  # done; the first row's are still shown
            del self.of_row[row]
        if self.users is not None:
            self.users.hand_out(memory.committed for memory in self.of_row.values())
        for row in batch.rows:
            if row not in self.of_row:
                copies = self.originals if self.users is None else clone(self.users.copies)
                self.of_row[row] = Memory(copies, self)
            self.of_row[row].begin_pass()

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        for lane, (row, num) in enumerate(zip(batch.rows, num_tokens, strict=True)):
            path: Sequence[int] = range(num) if batch.host_path is None else batch.host_path[lane]
            self.of_row[row].commit(num, path)
        self.is_drafting, self.has_begun = False, True
        if self.users is not None and self.lookahead_unsupported_reason is None:
            self.users.show(self.of_row[0].committed)  # the user's own objects show the memory of the call's first row
