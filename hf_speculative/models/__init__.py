"""Stage 4, roll back, and all that touches a transformers model or cache. One file a kind of cache."""

from .cached_model import CachedModel, without_dropout
from .early_exit import EarlyExitModel
from .ragged import AttentionLayers, RaggedCache, RaggedModel
from .recording import RecordingModel, fed_slots
from .shallow import exchanged

__all__ = [
    "AttentionLayers",
    "CachedModel",
    "EarlyExitModel",
    "RaggedCache",
    "RaggedModel",
    "RecordingModel",
    "exchanged",
    "fed_slots",
    "with_cache",
    "without_dropout",
]


def with_cache(model, is_draft: bool = False, hidden_layers: tuple[int, ...] = ()) -> CachedModel:
    """The cached form of `model`, of the kind that fits it; `checks.check_model` has refused what fits none.

    A draft may be shown tokens that it has no embedding for, where the target's vocabulary is padded further. A target whose
    drafter reads `hidden_layers` keeps their states.
    """
    if hidden_layers:
        return RecordingModel(model, hidden_layers)
    return RaggedModel(model, clamp_ids=is_draft)
