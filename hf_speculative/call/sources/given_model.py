"""What sources have in common that run the model given as `draft_model=`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from ...models import ATTENTION
from ..source import Source


@dataclass(frozen=True, eq=False)
class GivenModelSource(Source):
    """Drafts of a model that the user gives.

    Attributes:
        speculation_type: transformers' name of the method, which may be given and is not needed.
    """

    draft_model: PreTrainedModel
    speculation_type: str | None = None

    argument = "draft_model"

    def __post_init__(self):
        asked = self.speculation_type
        if asked not in (None, self.method):
            raise ValueError(
                f"`speculation_type={asked!r}` needs a DFlash draft, but `draft_model` is a {type(self.draft_model).__name__}: "
                "leave it out."
            )


class HeadSource(GivenModelSource):
    """A published draft head: made for one target, whose states, embeddings or cache it reads, and known by its config.

    Attributes:
        config_fields: what only configs of this kind of head have.
    """

    config_fields: ClassVar[tuple[str, ...]]
    runs_target = reads_states = True

    @classmethod
    def takes(cls, value) -> bool:
        config = getattr(value, "config", None)
        return all(hasattr(config, name) for name in cls.config_fields)

    @property
    def name(self) -> str:
        return type(self.draft_model).__name__

    def why_not(self, config) -> str | None:
        """What the head needs that a target of this text `config` is not; `None` if it fits."""
        raise NotImplementedError

    def check(self, model: PreTrainedModel) -> None:
        attention = self.draft_model.config.get_text_config(decoder=True)._attn_implementation
        if attention not in ATTENTION:
            raise ValueError(
                f"`draft_model` uses attn_implementation={attention!r}, which takes no explicit mask: load it with "
                "attn_implementation='sdpa'."
            )
        config = model.config.get_text_config(decoder=True)
        needs = self.why_not(config)
        if needs is not None:
            raise ValueError(
                f"`draft_model`: {self.name} was made for {needs}, the target is a {type(model).__name__} of hidden size "
                f"{config.hidden_size} with {config.num_hidden_layers} layers: use the draft that belongs to it."
            )
