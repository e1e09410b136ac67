"""What the target itself found likely after the same tokens: `draft_model="recycling"`."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..models.model_state import kept_with
from .proposers import Proposer, Recycling
from .texts import GuessingSource


@dataclass(frozen=True)
class RecyclingSource(GuessingSource):
    given: str

    method = "recycling"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [recycling_of(model)]


def recycling_of(model: PreTrainedModel) -> Recycling:
    """What is known of a model's successors, kept with it from call to call."""
    return kept_with(model).setdefault(Recycling, Recycling())
