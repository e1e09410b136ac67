"""Copies from the text: `prompt_lookup_num_tokens=`, or `method="ngram"`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ...drafting import Ngrams, PromptLookup, Proposer
from ...interfaces import Drafter
from ..source import BuildContext, DraftSource
from .texts import GuessingSource


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
