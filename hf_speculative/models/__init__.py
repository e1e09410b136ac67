"""Stage 4, roll back, and all that touches a transformers model or cache. One file a kind of cache."""

from .cached_model import CachedModel, device_of, without_dropout
from .choice import Path, choose, choose_for, why_not_ragged
from .inputs import Inputs, inputs_for_draft
from .probe import fits_universal
from .ragged import RaggedModel
from .universal import UniversalModel

__all__ = [
    "CachedModel",
    "Inputs",
    "Path",
    "RaggedModel",
    "UniversalModel",
    "choose",
    "choose_for",
    "device_of",
    "fits_universal",
    "inputs_for_draft",
    "why_not_ragged",
    "without_dropout",
]
