"""Draft with the target's own first layers: LayerSkip's self-speculation (Elhoushi et al. 2024, arXiv 2404.16710)."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from ..forwarding import Forwarded
from ..interfaces import CachedModel, Drafter
from ..models import EarlyExitModel, fits_early_exit
from ..models.checks import OTHERWISE
from ..models.shallow import decoder_layers, is_patched
from ..types import Batch
from .autoregressive import AutoregressiveDrafter
from .source import BuildContext, DraftSource


class EarlyExit(AutoregressiveDrafter):
    """Drafts with the lower half of the target, whose cache it writes to; so there is nothing to roll back.

    Args:
        target: the target in two halves.
    """

    num_forwards = Forwarded("target", "num_draft_forwards")  # type: ignore[assignment]

    def __init__(self, target: EarlyExitModel):
        self.target = target

    def step(self, batch: Batch, ahead: int) -> Tensor:
        return self.target.exit_logits(batch, ahead)


@dataclass(frozen=True)
class EarlyExitSource(DraftSource):
    exit_layer: int

    argument, method, runs_target = "assistant_early_exit", "early_exit", True
    needs_ragged = True
    writes_target = takes_guesses = True
    window = 0  # what it has not read, the target has

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[int, ...]:
        """A quarter and half of the layers."""
        return tuple(sorted({_num_layers(model) // 4, _num_layers(model) // 2} - {0}))

    @property
    def label(self) -> str:
        return f"{self.method} at layer {self.exit_layer}"

    @property
    def cost_key(self) -> Hashable:
        return self.method, self.exit_layer

    def check(self, model: PreTrainedModel) -> None:
        asked, num_layers = f"`{self.argument}={self.exit_layer}`", _num_layers(model)
        if self.exit_layer >= num_layers:
            limits = f"of {num_layers} layers, give 1 to {num_layers - 1}"
            raise ValueError(f"{asked} leaves nothing to verify with: {limits}.")
        if decoder_layers(model) is None or is_patched(model) or not fits_early_exit(model, self.exit_layer):
            name = type(model).__name__
            raise ValueError(f"{asked}: {name} cannot be run in two halves that give its logits: {OTHERWISE}.")

    def cost_of_token(self, model: PreTrainedModel) -> float:
        return self.exit_layer / _num_layers(model)

    def build(self, call: BuildContext) -> tuple[CachedModel | None, Drafter]:
        halves = EarlyExitModel(call.model, self.exit_layer)
        return halves, EarlyExit(halves)


def _num_layers(model: PreTrainedModel) -> int:
    return model.config.get_text_config(decoder=True).num_hidden_layers
