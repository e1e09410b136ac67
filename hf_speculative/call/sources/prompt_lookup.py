"""Copies from the text: `prompt_lookup_num_tokens=`, or `method="ngram"`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ...drafting import PromptLookup
from ...interfaces import Drafter
from ..source import PreparedCall, Source


@dataclass(frozen=True)
class PromptLookupSource(Source):
    num_draft_tokens: int
    max_matching_ngram_size: int = 3

    argument, method = "prompt_lookup_num_tokens", "ngram"

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[int, ...]:
        return (10,)

    def drafter(self, call: PreparedCall) -> Drafter:
        return PromptLookup(self.max_matching_ngram_size)


@dataclass(frozen=True)
class NgramSource(Source):
    """The same by vLLM's name, the number of tokens being that of `num_draft_tokens`."""

    given: str
    max_matching_ngram_size: int = 3

    argument, method = "method", "ngram"

    @classmethod
    def takes(cls, value) -> bool:
        return value == cls.method

    def drafter(self, call: PreparedCall) -> Drafter:
        return PromptLookup(self.max_matching_ngram_size)
