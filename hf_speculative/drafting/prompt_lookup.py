"""The text itself guesses: what followed the same words last time.

Prompt lookup decoding (Saxena 2023; `prompt_lookup_num_tokens` in transformers). The longest n-gram that ends the sequence
and occurs earlier is looked up, its most recent occurrence first, and the tokens after it are proposed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..interfaces import Drafter, Sampler, Schedule
from ..types import Batch, Draft
from .ngrams import NgramIndex
from .proposers import Ngrams, Proposer
from .source import BuildContext, DraftSource
from .texts import GuessingSource


class PromptLookup(Drafter):
    """Drafts by copying.

    Args:
        max_ngram: the longest n-gram to match; shorter ones are tried down to a single token.
    """

    one_hot_proposals = True

    def __init__(self, max_ngram: int = 3):
        self.max_ngram = max_ngram

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.vocab_size = sampler.vocab_size
        self.indices: dict[int, NgramIndex] = defaultdict(lambda: NgramIndex(self.max_ngram))

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return Draft.of(
            batch, [self._look_up(row, batch.history[b], num_tokens[b]) for b, row in enumerate(batch.rows)]
        )

    def _look_up(self, row: int, history: list[int], num_tokens: int) -> list[int]:
        """Up to `num_tokens` tokens that followed the most recent match of the longest suffix."""
        if num_tokens == 0:
            return []
        start, _ = self.indices[row].last_match(history)
        # A prompt may hold ids that have an embedding but no logit: those cannot be generated.
        return [t for t in history[start : start + num_tokens] if t < self.vocab_size]


@dataclass(frozen=True)
class PromptLookupSource(DraftSource):
    num_draft_tokens: int
    max_matching_ngram_size: int = 3

    argument, method = "prompt_lookup_num_tokens", "ngram"

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[int, ...]:
        return (10,)

    def drafter(self, call: BuildContext) -> Drafter:
        return PromptLookup(self.max_matching_ngram_size)


@dataclass(frozen=True)
class NgramSource(GuessingSource):
    """The same by vLLM's name, as far as it is likely to be right."""

    given: str
    max_matching_ngram_size: int = 3

    method = "ngram"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [Ngrams(self.max_matching_ngram_size)]
