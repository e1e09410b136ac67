"""Copies from texts: the row's own, finished answers, a corpus: `draft_model="suffix"`."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..proposers import Proposer
from ..texts import TextSource


@dataclass(frozen=True, eq=False)
class SuffixSource(TextSource):
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1

    method = "suffix"

    def __post_init__(self):
        super().__post_init__()
        if "assistant_confidence_threshold" in self.in_call:
            raise ValueError(
                "`assistant_confidence_threshold` has no effect on `draft_model='suffix'`: give "
                "`SpeculativeConfig(suffix_decoding_min_token_prob=...)`."
            )

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return self.copies(
            model,
            max_factor=self.suffix_decoding_max_spec_factor,
            min_share=self.suffix_decoding_min_token_prob,
        )
