"""Train drafts: a head or a small model, from a target's own answers."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..distillation.objective import LOSSES
    from ..distillation.sampling_params import SamplingParams
    from .results import Trained
    from .run import train
    from .settings import Settings
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = ["LOSSES", "SamplingParams", "Settings", "Trained", "train"]
