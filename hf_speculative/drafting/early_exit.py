"""The target's own first layers guess: LayerSkip's self-speculation (Elhoushi et al. 2024, arXiv 2404.16710)."""

from __future__ import annotations

from torch import Tensor

from ..models import EarlyExitModel
from ..types import Batch
from .autoregressive import AutoregressiveDrafter


class EarlyExit(AutoregressiveDrafter):
    """Drafts with the lower half of the target, whose cache it writes to; so there is nothing to roll back.

    Args:
        target: the target in two halves.
    """

    def __init__(self, target: EarlyExitModel):
        self.target = target

    @property
    def num_forwards(self) -> int:
        return self.target.num_draft_forwards

    def step(self, batch: Batch, ahead: int) -> Tensor:
        return self.target.exit_logits(batch, ahead)
