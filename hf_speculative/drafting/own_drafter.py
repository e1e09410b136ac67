"""A drafter of the user's own: `draft_model=MyDrafter()` (docs/extend.md)."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..interfaces import Drafter
from .source import BuildContext, DraftSource


@dataclass(frozen=True, eq=False)
class OwnDrafterSource(DraftSource):
    own: Drafter

    method = "custom"

    @classmethod
    def takes(cls, value) -> bool:
        return isinstance(value, Drafter)

    @property
    def name(self) -> str:
        return type(self.own).__name__

    @property
    def reads_states(self) -> bool:  # type: ignore[override]
        return bool(self.own.hidden_layers)

    def costs_end_with(self, model: PreTrainedModel) -> object:
        """Its class: a new object in each call shall not be measured each time."""
        return type(self.own)

    def drafter(self, call: BuildContext) -> Drafter:
        return self.own
