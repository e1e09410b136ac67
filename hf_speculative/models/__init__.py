"""Stage 4, roll back, and all that touches a transformers model or cache. One file a kind of cache."""

from .cached_model import CachedModel, without_dropout
from .early_exit import EarlyExitModel
from .ragged import RaggedModel

__all__ = ["CachedModel", "EarlyExitModel", "RaggedModel", "with_cache", "without_dropout"]


def with_cache(model, is_draft: bool = False) -> CachedModel:
    """The cached form of `model`, of the kind that fits it; `checks.check_model` has refused what fits none.

    A draft may be shown tokens that it has no embedding for, where the target's vocabulary is padded further.
    """
    return RaggedModel(model, clamp_ids=is_draft)
