"""What is kept of a model between calls, until `detach` or the end of the model: memory, and passes that are ready to run.

Caches are allocated once for calls of a like shape; one idle cache a model, of the last call. A compiled pass goes with any
cache, a captured one with the cache that it was captured over.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .cached_model import device_of
from .packed_parameters import own_parameters

if TYPE_CHECKING:
    from .bound import BoundPass, PassOfPieces
    from .ragged_cache import RaggedCache


@dataclass
class ModelResources:
    """What is kept of one model.

    Attributes:
        state: what compiled and captured passes take for granted.
        idle: a cache that no call uses.
        compiled: passes by kind, see `StaticModel`.
        artifacts: passes that were compiled ahead of time, by the hidden states that they give.
        twin: the shallow copy of the model that compiled passes run, where they do not run the model itself.
    """

    state: tuple
    idle: "RaggedCache | None" = None
    compiled: dict[tuple, Callable[..., Tensor]] = field(default_factory=dict)
    artifacts: "dict[tuple[int, ...], BoundPass | PassOfPieces]" = field(default_factory=dict)
    twin: PreTrainedModel | None = None


_kept: WeakKeyDictionary[PreTrainedModel, ModelResources] = WeakKeyDictionary()
_lock = threading.Lock()


def kept(model: PreTrainedModel) -> ModelResources:
    """What is kept of `model`; nothing yet, if it is not as it was: see `_state`."""
    state = _state(model)
    with _lock:
        if model not in _kept or _kept[model].state != state:
            _kept[model] = ModelResources(state)
        return _kept[model]


def has_artifact(model: PreTrainedModel | None) -> bool:
    """Its passes, since last looked at, are compiled ahead of time."""
    return model in _kept and bool(_kept[model].artifacts)


def release_artifact(model: PreTrainedModel) -> None:
    """Release passes that were compiled ahead of time, and the weights that they read."""
    with _lock:
        if model in _kept:
            _kept[model].artifacts.clear()


def take(model: PreTrainedModel, make: "Callable[[], RaggedCache]") -> "RaggedCache":
    """Take the model's idle cache, or make a new one."""
    entry = kept(model)
    with _lock:
        cache, entry.idle = entry.idle or make(), None
    cache.made_for = entry.state
    return cache


def give_back(model: PreTrainedModel, cache: "RaggedCache") -> None:
    """The call is over: the next one may have the cache, if the model is as it was when this one took it."""
    with _lock:
        entry = _kept.get(model)
        if entry is not None and entry.state == cache.made_for:
            entry.idle = cache


def release(model: PreTrainedModel | None) -> None:
    """Let go of all that is kept of `model`."""
    with _lock:
        if model is not None:
            _kept.pop(model, None)


def _state(model: PreTrainedModel) -> tuple:
    """What a captured or compiled pass takes for granted, and what a cache was built from.

    Where the weights are, what the config says (windows, how attention is computed), which hooks there are, and the modes.
    Memory of one mode is of no use in another: autocast caches other types, and inference tensors stay in inference mode.
    """
    modules = list(model.modules())
    tensors = chain.from_iterable(chain(own_parameters(module), module._buffers.values()) for module in modules)
    weights = tuple(tensor.data_ptr() for tensor in tensors if tensor is not None)
    # By the ids of their handles, which torch gives once.
    hooks = tuple(
        tuple(part) for module in modules for part in (module._forward_pre_hooks, module._forward_hooks) if part
    )
    device = device_of(model).type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    training = tuple(module.training for module in modules)  # a twin and a captured pass keep theirs
    modes = autocast, torch.is_inference_mode_enabled(), training
    settings = repr(vars(model.config.get_text_config(decoder=True)))
    return weights, model.dtype, model.device, settings, hooks, modes
