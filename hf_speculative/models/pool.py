"""Caches are kept between calls: memory is allocated once, and passes compiled or captured over it stay valid.

One idle cache a model, of the last shape; `detach` lets go of it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from .ragged import RaggedCache

_idle: WeakKeyDictionary[PreTrainedModel, tuple[Any, RaggedCache]] = WeakKeyDictionary()
_lock = threading.Lock()


def take(model: PreTrainedModel) -> RaggedCache | None:
    """The model's idle cache, if it still goes with the model's weights."""
    with _lock:
        state, cache = _idle.pop(model, (None, None))
    return cache if cache is not None and state == _state(model) else None


def give_back(model: PreTrainedModel, cache: RaggedCache) -> None:
    """The call is over: the next one may have the cache, unless several calls ran at once and another was faster."""
    with _lock:
        _idle.setdefault(model, (_state(model), cache))


def release(model: PreTrainedModel | None) -> None:
    """Let go of the model's idle cache."""
    with _lock:
        if model is not None:
            _idle.pop(model, None)


def _state(model: PreTrainedModel) -> tuple:
    """What a captured or compiled pass takes for granted: weights where they were, modules that run as they did."""
    weights = tuple(parameter.data_ptr() for parameter in model.parameters())
    return weights, model.dtype, model.device, model.config._attn_implementation
