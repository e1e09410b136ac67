"""Copies of what followed the last few tokens earlier in the text: prompt lookup decoding (Saxena 2023).

`draft_model="ngram"`, or `prompt_lookup_num_tokens` as in transformers, which also says how many tokens to copy at most.
"""

from dataclasses import dataclass

from transformers import PreTrainedModel

from .proposers import PromptSuffix, Proposer
from .texts import GuessingSource


@dataclass(frozen=True)
class NgramSource(GuessingSource):
    given: str
    max_matching_ngram_size: int = 3

    method = "ngram"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [PromptSuffix(max_depth=self.max_matching_ngram_size + 1)]  # the match and the token after it


@dataclass(frozen=True)
class PromptLookupSource(NgramSource):
    given: int  # type: ignore[assignment]

    argument = "prompt_lookup_num_tokens"

    @property
    def num_draft_tokens(self) -> int:  # type: ignore[override]
        return self.given

    @classmethod
    def takes(cls, value) -> bool:
        return True

    @classmethod
    def asked_by(cls) -> str:
        return cls.argument

    @property
    def name(self) -> str:
        return self.argument

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[int, ...]:
        return (10,)
