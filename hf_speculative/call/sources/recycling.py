"""What the target itself found likely after the same tokens: `method="recycling"`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ...drafting import Recycling
from ...interfaces import Drafter
from ..kept import kept_with
from ..source import PreparedCall
from .texts import GuessingSource


@dataclass(frozen=True)
class RecyclingSource(GuessingSource):
    given: str

    method = "recycling"

    def drafter(self, call: PreparedCall) -> Drafter:
        return self.tree_drafter(call.model, [recycling_of(call.model)])


def recycling_of(model: PreTrainedModel) -> Recycling:
    """What is known of a model's successors, kept with it from call to call."""
    return kept_with(model).setdefault(Recycling, Recycling())
