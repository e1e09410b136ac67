"""Apply transformers' stateless, prefix-dependent logits processors to all rows and positions at once.

transformers calls a processor with prefixes of one width; in a round they differ. Where the width alone counts, or the last
tokens, its own code is called for all positions at once; processors that forbid tokens up to some width, or look further back,
are reimplemented. Scores are the same bit for bit, may be changed in place, and nothing is read from the device.

The prefix of a position is a row's own tokens, then the draft tokens on its path.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..hf_compat import logits_process as hf
from ..types import NO_TOKEN, Batch, columns_from, uploaded


class Prefixes:
    """The prefixes of the positions `[first, first + num_positions)` of each row.

    Position 0 follows the row's own tokens, position i the first i draft tokens beyond; in a `tree`, node i - 1 and the path to
    it.
    """

    #: of one position: the rows in which plain decoding may come to it, see `reached_at`
    reached: list[bool]

    def __init__(self, batch: Batch, num_positions: int, first: int, is_draft: bool = False):
        self.batch, self.num_positions, self.first, self.tree = batch, num_positions, first, batch.tree
        self.is_draft = is_draft
        #: by lane and position: what a processor raised there
        self.errors: dict[tuple[int, int], Exception] = {}
        #: by position, one after the other
        self.reached_so_far: list[list[bool]] = []

    def at(self, position: int) -> Prefixes:
        """Those of one position, counted from `first`."""
        one = copy.copy(self)  # along with `host_paths`
        one.num_positions, one.first = 1, self.first + position
        vars(one).pop("widths", None)
        return one

    @cached_property
    def host_paths(self) -> list[list[tuple[int, ...]]]:
        """By row, the draft tokens on the way to each position, counted from 0; asks the device for them, once."""
        batch, num_tokens = self.batch, self.first + self.num_positions - 1
        drafted: list[list[int]] = [[]] * len(batch.rows)
        if num_tokens:
            drafted = batch.tokens.gather(1, columns_from(batch.lengths, num_tokens)).tolist()
        found = []
        for lane, tokens in enumerate(drafted):
            paths: list[tuple[int, ...]] = [()]
            for node, token in enumerate(tokens):
                paths.append((*paths[self.before(lane, node + 1)], token))
            found.append(paths)
        return found

    def before(self, lane: int, position: int) -> int:
        """The position, counted from 0, that comes before another one."""
        return position - 1 if self.tree is None else self.tree.host_parents[lane][position - 1] + 1

    def reached_at(self, position: int, columns: list[Tensor]) -> list[bool]:
        """The rows in which plain decoding may come to a position: no token before is forbidden, none ends the row, and it is
        not full. At others a processor may know of nothing, or raise.

        Called for each position in turn; asks the device once.

        Args:
            columns: processed scores at the positions before, each `(batch, 1, vocab)`.
        """
        batch, paths = self.batch, [paths[self.first + position] for paths in self.host_paths]
        lengths = [length + len(path) for path, length in zip(paths, batch.host_lengths, strict=True)]
        reached = [n < batch.max_length and batch.ends.isdisjoint(path) for path, n in zip(paths, lengths, strict=True)]
        if position and not self.first:  # what a draft looks at further ahead was drawn from what is allowed
            before = [self.before(lane, position) for lane in range(len(paths))]
            scores = torch.stack([columns[p][lane, 0, paths[lane][-1]] for lane, p in enumerate(before)]).tolist()
            for lane, (p, score) in enumerate(zip(before, scores, strict=True)):
                reached[lane] &= self.reached_so_far[p][lane] and score > -torch.inf
        self.reached_so_far.append(reached)
        return reached

    @cached_property
    def widths(self) -> Tensor:
        """`(batch, num_positions)` int64, the columns of each prefix."""
        places = torch.arange(self.first, self.first + self.num_positions, device=self.batch.lengths.device)
        return self.batch.lengths[:, None] + (places if self.tree is None else self.tree.depths[:, places])

    @property
    def beyond(self) -> range:
        """How many tokens prefixes may have beyond a row's own, as far as the host knows without asking."""
        end = self.first + self.num_positions
        return range(self.first, end) if self.tree is None else range(min(self.first, 1), min(end, self.tree.depth + 1))

    @property
    def shortest(self) -> int:
        """No prefix has fewer columns, as far as the host knows without asking."""
        return min(self.batch.host_lengths) + self.beyond[0]

    @property
    def longest(self) -> int:
        """No prefix has more columns, as far as the host knows without asking."""
        return max(self.batch.host_lengths) + self.beyond[-1]

    def last(self, num_tokens: int, start: int | Tensor = 0) -> Tensor:
        """`(batch, num_positions, num_tokens)` the last tokens of each prefix.

        `NO_TOKEN` where a prefix is shorter, and before column `start`, a number or `(batch, 1, 1)`.
        """
        batch, tree = self.batch, self.tree
        columns = self.widths[..., None] + torch.arange(-num_tokens, 0, device=batch.tokens.device)
        places = columns.clamp(min=0)
        if tree is not None:  # all nodes stand behind the row's own tokens; a prefix has those of its path only
            lengths = batch.lengths[:, None, None]
            nodes = torch.arange(self.first, self.first + self.num_positions, device=columns.device) - 1
            on_path = (columns - lengths).clamp(0, tree.depth - 1)
            of_path = lengths + tree.paths[:, nodes.clamp(min=0)].gather(2, on_path)
            places = places.where(columns < lengths, of_path)
        tokens = batch.tokens.gather(1, places.flatten(1)).view_as(places)
        return tokens.where(columns >= start, NO_TOKEN)


class Forbids:
    """Forbids tokens wherever the prefix has one of `widths`, whatever its own tokens are."""

    def __init__(self, tokens: Tensor, widths: range):
        self.forbidden, self.widths = tokens.flatten(), widths

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        first, end = self.widths.start, self.widths.stop
        if prefixes.longest < first or prefixes.shortest >= end:
            return scores
        forbidden = self.forbidden.to(scores.device)
        ids = forbidden.clamp(0, scores.shape[-1] - 1)  # one that is outside of the vocabulary forbids nothing
        widths = prefixes.widths[..., None]
        is_forbidden = (widths >= first) & (widths < end) & torch.isin(ids, forbidden)
        return scores.index_copy_(-1, ids, scores[..., ids].masked_fill(is_forbidden, -torch.inf))


class ByWidth:
    """Looks at nothing but the width of a prefix, and does something at some of `widths`."""

    def __init__(self, processor, widths: range):
        self.processor, self.widths = processor, widths

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        possible = {length + more for length in prefixes.batch.host_lengths for more in prefixes.beyond}
        for width in (width for width in possible if width in self.widths):
            any_prefix = torch.zeros(1, 1, dtype=torch.long, device=scores.device).expand(scores.shape[:2].numel(), width)
            try:
                processed = self.processor(any_prefix, scores.flatten(0, 1)).view_as(scores)
            except OverflowError:  # plain decoding raises where it gets there, and drafts look further
                continue
            scores = torch.where(prefixes.widths[..., None] == width, processed, scores)
        return scores


class ExponentialDecay(ByWidth):
    """Raises the scores of the end tokens, and sees no others: it is called once for each of many widths."""

    def __init__(self, processor: hf.ExponentialDecayLengthPenalty):
        self.eos, of_ends = processor.eos_token_id.flatten(), copy.copy(processor)
        of_ends.eos_token_id = torch.arange(len(self.eos))
        super().__init__(of_ends, range(math.floor(processor.regulation_start) + 1, sys.maxsize))

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        eos = self.eos.to(scores.device)
        return scores.index_copy_(-1, eos, super().__call__(prefixes, scores[..., eos]))


def last_tokens(processor, num_tokens: int, prefixes: Prefixes, scores: Tensor) -> Tensor:
    """What looks at no more than the last `num_tokens` tokens of a prefix."""

    def process(width: int) -> Tensor:
        return processor(prefixes.last(width).flatten(0, 1), scores.flatten(0, 1)).view_as(scores)

    shortest, longest = (min(width, num_tokens) for width in (prefixes.shortest, prefixes.longest))
    processed = process(shortest)
    for width in range(shortest + 1, longest + 1):  # a prefix that is shorter has to be shown as short as it is
        processed = torch.where(prefixes.widths[..., None] >= width, process(width), processed)
    return processed


def repetition_penalty(processor: hf.RepetitionPenaltyLogitsProcessor, prefixes: Prefixes, scores: Tensor) -> Tensor:
    """Of the tokens of a prefix, but for those at its beginning that are to be ignored."""
    if prefixes.longest == 0:
        return scores
    batch, penalty, start = prefixes.batch, processor.penalty, processor.prompt_ignore_length
    if isinstance(start, Tensor):  # one entry a row of the call
        start = start.to(batch.tokens.device)[uploaded(batch.rows, batch.tokens.device)[:, None, None]]
    tokens = prefixes.last(prefixes.longest, 0 if start is None else start)
    return _change(scores, tokens, lambda before: torch.where(before < 0, before * penalty, before / penalty))


def no_repeated_ngram(processor: hf.NoRepeatNGramLogitsProcessor, prefixes: Prefixes, scores: Tensor) -> Tensor:
    """Forbid the tokens that would repeat an n-gram of the prefix."""
    if prefixes.longest < processor.ngram_size:
        return scores
    windows = prefixes.last(prefixes.longest).unfold(2, processor.ngram_size, 1)
    is_begun = (windows[..., :-1] == windows[..., -1:, 1:]).all(-1)
    return _change(scores, windows[..., -1].where(is_begun, NO_TOKEN), lambda before: -torch.inf)


def _change(scores: Tensor, tokens: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """Change, in place and once each, the `scores (batch, n, vocab)` of `tokens (batch, n, m)`; `NO_TOKEN` is none."""
    tokens = tokens.where(tokens < scores.shape[2], NO_TOKEN)  # a prompt may hold what cannot be generated
    stand_in = tokens.amax(2, keepdim=True)  # for what is none; it is given the same score again
    places = tokens.where(tokens >= 0, stand_in).clamp(min=0)
    before = scores.gather(2, places)
    return scores.scatter_(2, places, torch.where(stand_in >= 0, change(before), before))


def _of_sequences(processor: hf.SequenceBiasLogitsProcessor) -> Callable:
    return partial(last_tokens, processor, max(map(len, processor.sequence_bias), default=1))


#: by exact type: a subclass may remember things
MEMORYLESS: dict[type, Callable[[Any], Any]] = {
    hf.MinLengthLogitsProcessor: lambda p: Forbids(p.eos_token_id, range(p.min_length)),
    hf.MinNewTokensLengthLogitsProcessor: lambda p: Forbids(p.eos_token_id, range(p.prompt_length_to_skip + p.min_new_tokens)),
    hf.SuppressTokensAtBeginLogitsProcessor: lambda p: Forbids(
        p.begin_suppress_tokens, range(p.begin_index, p.begin_index + 1)
    ),
    hf.ForcedBOSTokenLogitsProcessor: lambda p: ByWidth(p, range(1, 2)),
    hf.ForcedEOSTokenLogitsProcessor: lambda p: ByWidth(p, range(p.max_length - 1, p.max_length)),
    hf.ExponentialDecayLengthPenalty: ExponentialDecay,
    hf.SequenceBiasLogitsProcessor: _of_sequences,
    hf.NoBadWordsLogitsProcessor: _of_sequences,
    hf.WatermarkLogitsProcessor: lambda p: partial(last_tokens, p, p.context_width),
    hf.RepetitionPenaltyLogitsProcessor: lambda p: partial(repetition_penalty, p),
    hf.NoRepeatNGramLogitsProcessor: lambda p: partial(no_repeated_ngram, p),
}
