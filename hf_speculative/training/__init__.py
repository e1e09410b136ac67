"""Train drafts: a head or a small model, from a target's own answers."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .losses import LOSSES
    from .results import Trained
    from .run import train
    from .sampling_params import SamplingParams
    from .settings import Settings
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = ["LOSSES", "SamplingParams", "Settings", "Trained", "train"]
