"""Apply transformers' stateless, prefix-dependent logits processors to all rows and positions at once.

transformers calls a processor with prefixes of one width; in a round they differ. Where the width alone counts, or the last
tokens, its own code is called once for all positions; processors that look further back are reimplemented. Scores are the
same bit for bit, may be changed in place, and nothing is read from the device.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..hf_compat import logits_process as hf
from ..types import NO_TOKEN, uploaded
from .prefixes import Prefixes


class AtWidths:
    """Writes the same scores wherever the prefix has one of `widths`, whatever its tokens are.

    Args:
        forbidden: the tokens that it does no more than forbid, if so.
    """

    def __init__(self, processor, widths: range, forbidden: Tensor | None = None):
        self.processor, self.widths, self.forbidden = processor, widths, forbidden
        #: of those tokens, or of the whole vocabulary
        self.written: Tensor | None = None

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        first, end = self.widths.start, self.widths.stop
        if prefixes.longest < first or prefixes.shortest >= end:
            return scores
        ids = None
        # An id outside of the vocabulary names its first or last token, which is then left as it is.
        if self.forbidden is not None:
            ids = self.forbidden.flatten().to(scores.device).clamp(0, scores.shape[-1] - 1)
        if self.written is None:
            nothing = torch.full_like(scores[0, :1], torch.nan)
            written = self.processor(_any_prefix(first, scores.device), nothing)[0]
            self.written = written if ids is None else written[ids]
        is_written = ~self.written.isnan()
        if prefixes.shortest < first or prefixes.longest >= end:
            widths = prefixes.widths[..., None]
            is_written = is_written & (widths >= first) & (widths < end)
        if ids is None:
            return torch.where(is_written, self.written, scores)
        return scores.index_copy_(-1, ids, torch.where(is_written, self.written, scores[..., ids]))


class ExponentialDecay:
    """Raises the scores of the end tokens, more with each column beyond `start`."""

    def __init__(self, processor: hf.ExponentialDecayLengthPenalty):
        self.processor = processor
        self.start = math.floor(processor.regulation_start)
        self.eos = processor.eos_token_id.flatten()
        self.growth = torch.empty(0)
        # Older versions of transformers make NaN of an end token that is banned.
        banned = torch.full((1, int(self.eos.max()) + 1), -torch.inf, device=self.eos.device)
        self.spares_infinity = not processor(_any_prefix(self.start + 1, self.eos.device), banned).isnan().any()

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        longest = prefixes.longest - self.start
        if longest <= 0:
            return scores
        if longest >= len(self.growth):
            growth = [self._growth(n) for n in range(2 * longest)]
            self.growth = torch.tensor(growth, dtype=scores.dtype, device=scores.device)
            self.eos = self.eos.to(scores.device)
        num_beyond = (prefixes.widths[..., None] - self.start).clamp(min=0)
        before = scores[..., self.eos]
        penalty = before.abs() * self.growth[num_beyond]
        if self.spares_infinity:
            penalty = penalty.masked_fill(~before.isfinite(), 0.0)
        scores[..., self.eos] = torch.where(num_beyond > 0, before + penalty, before)
        return scores

    def _growth(self, num_beyond: int) -> float:
        exponent = self.start + num_beyond - self.processor.regulation_start
        try:
            return float(pow(self.processor.regulation_factor, exponent) - 1)
        except OverflowError:  # plain `generate` raises where it gets there; the table is longer than the tokens are
            return math.inf


class LastTokens:
    """Looks at no more than the last `num_tokens` tokens of a prefix."""

    def __init__(self, processor, num_tokens: int):
        self.processor, self.num_tokens = processor, num_tokens

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        shortest, longest = (min(width, self.num_tokens) for width in (prefixes.shortest, prefixes.longest))
        processed = self._process(prefixes, scores, shortest)
        for width in range(shortest + 1, longest + 1):  # a prefix that is shorter has to be shown as short as it is
            reaches = prefixes.widths[..., None] >= width
            processed = torch.where(reaches, self._process(prefixes, scores, width), processed)
        return processed

    def _process(self, prefixes: Prefixes, scores: Tensor, num_tokens: int) -> Tensor:
        return self.processor(prefixes.last(num_tokens).flatten(0, 1), scores.flatten(0, 1)).view_as(scores)


class RepetitionPenalty:
    """The tokens of a prefix, but for those at its beginning that are to be ignored."""

    def __init__(self, processor: hf.RepetitionPenaltyLogitsProcessor):
        self.processor = processor

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        if prefixes.longest == 0:
            return scores
        batch, penalty = prefixes.batch, self.processor.penalty
        start = self.processor.prompt_ignore_length
        if isinstance(start, Tensor):  # one entry a row of the call
            start = start.to(batch.tokens.device)[uploaded(batch.rows, batch.tokens.device)[:, None, None]]
        tokens = prefixes.last(prefixes.longest, 0 if start is None else start)
        return _change(scores, tokens, lambda before: torch.where(before < 0, before * penalty, before / penalty))


class NoRepeatNGram:
    """The tokens that would repeat an n-gram of the prefix."""

    def __init__(self, processor: hf.NoRepeatNGramLogitsProcessor):
        self.ngram_size = processor.ngram_size

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        if prefixes.longest < self.ngram_size:
            return scores
        windows = prefixes.last(prefixes.longest).unfold(2, self.ngram_size, 1)
        is_begun = (windows[..., :-1] == windows[..., -1:, 1:]).all(-1)
        return _change(scores, windows[..., -1].where(is_begun, NO_TOKEN), lambda before: -torch.inf)


def _change(scores: Tensor, tokens: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """Change, in place and once each, the `scores (batch, n, vocab)` of `tokens (batch, n, m)`; `NO_TOKEN` is none."""
    tokens = tokens.where(tokens < scores.shape[2], NO_TOKEN)  # a prompt may hold what cannot be generated
    stand_in = tokens.amax(2, keepdim=True)  # for what is none; it is given the same score again
    places = tokens.where(tokens >= 0, stand_in).clamp(min=0)
    before = scores.gather(2, places)
    return scores.scatter_(2, places, torch.where(stand_in >= 0, change(before), before))


def _of_sequences(processor: hf.SequenceBiasLogitsProcessor) -> LastTokens:
    return LastTokens(processor, max(map(len, processor.sequence_bias), default=1))


def _any_prefix(width: int, device: torch.device) -> Tensor:
    return torch.zeros(1, 1, dtype=torch.long, device=device).expand(1, width)


#: by exact type: a subclass may remember things
MEMORYLESS: dict[type, Callable[[Any], Any]] = {
    hf.MinLengthLogitsProcessor: lambda p: AtWidths(p, range(p.min_length), p.eos_token_id),
    hf.MinNewTokensLengthLogitsProcessor: lambda p: AtWidths(
        p, range(p.prompt_length_to_skip + p.min_new_tokens), p.eos_token_id
    ),
    hf.ForcedBOSTokenLogitsProcessor: lambda p: AtWidths(p, range(1, 2)),
    hf.ForcedEOSTokenLogitsProcessor: lambda p: AtWidths(p, range(p.max_length - 1, p.max_length)),
    hf.SuppressTokensAtBeginLogitsProcessor: lambda p: AtWidths(
        p, range(p.begin_index, p.begin_index + 1), p.begin_suppress_tokens
    ),
    hf.ExponentialDecayLengthPenalty: ExponentialDecay,
    hf.SequenceBiasLogitsProcessor: _of_sequences,
    hf.NoBadWordsLogitsProcessor: _of_sequences,
    hf.WatermarkLogitsProcessor: lambda p: LastTokens(p, p.context_width),
    hf.RepetitionPenaltyLogitsProcessor: RepetitionPenalty,
    hf.NoRepeatNGramLogitsProcessor: NoRepeatNGram,
}
