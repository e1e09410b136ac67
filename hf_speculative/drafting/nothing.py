"""Draft nothing: each round is a step of plain decoding, through the same cache."""

from ..interfaces import Drafter, Sampler, Schedule
from ..types import Batch, Draft


class Nothing(Drafter):
    one_hot_proposals = True

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return Draft.empty(batch)
