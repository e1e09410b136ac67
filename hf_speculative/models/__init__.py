"""Stage 4, roll back, and all that touches a transformers model or cache. One file a kind of cache."""

from .cached_model import CachedModel
from .ragged import RaggedModel

__all__ = ["CachedModel", "RaggedModel", "with_cache"]


def with_cache(model) -> CachedModel:
    """The cached form of `model`, of the kind that fits it; `checks.check_model` has refused what fits none."""
    return RaggedModel(model)
