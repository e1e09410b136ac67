"""Keep resources of a model between calls, until `detach` or the end of the model: caches, and compiled passes.

Caches are allocated once for calls of a like shape; one idle cache a model, of the last call. A compiled pass goes with any
cache, a captured one with the cache that it was captured over.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .cached_model import device_of
from .exported import BoundPass, PassOfPieces
from .ragged_cache import RaggedCache


@dataclass
class ModelResources:
    """The resources kept for one model.

    Attributes:
        state: of the model, which compiled and captured passes assume.
        idle: a cache that no call uses.
        artifacts: passes that were compiled ahead of time, by the hidden states that they give.
        met: how often kinds of pass were run, see `Replays`.
        num_unreplayed: passes that ran otherwise where captures are made: too few of their kind, or the capture itself.
        cannot_capture: a capture of one of its passes failed.
    """

    state: tuple
    idle: RaggedCache | None = None
    artifacts: dict[tuple[int, ...], BoundPass | PassOfPieces] = field(default_factory=dict)
    met: Counter[tuple] = field(default_factory=Counter)
    num_unreplayed: int = 0
    cannot_capture: bool = False


_kept: WeakKeyDictionary[PreTrainedModel, ModelResources] = WeakKeyDictionary()
_lock = threading.Lock()


def kept(model: PreTrainedModel) -> ModelResources:
    """The resources of `model`; new ones if its `_state` has changed."""
    state = _state(model)
    with _lock:
        if model not in _kept or _kept[model].state != state:
            _kept[model] = ModelResources(state)
        return _kept[model]


def has_artifact(model: PreTrainedModel | None) -> bool:
    """Whether its passes were compiled ahead of time when last used."""
    return model in _kept and bool(_kept[model].artifacts)


def num_unreplayed(*models: PreTrainedModel | None) -> int:
    """How many passes of `models` ran eagerly, or were captured, before a replay took their place."""
    return sum(_kept[model].num_unreplayed for model in models if model in _kept)


def take(model: PreTrainedModel, make: Callable[[], RaggedCache]) -> RaggedCache:
    """Take the model's idle cache, or make a new one."""
    entry = kept(model)
    with _lock:
        cache, entry.idle = entry.idle or make(), None
    cache.made_for = entry.state
    return cache


def give_back(model: PreTrainedModel, cache: RaggedCache) -> None:
    """Return a cache after a call, for the next one; it is dropped if the model has changed since."""
    with _lock:
        entry = _kept.get(model)
        if entry is not None and entry.state == cache.made_for:
            entry.idle = cache


def release(model: PreTrainedModel | None) -> None:
    """Release all resources of `model`."""
    with _lock:
        if model is not None:
            _kept.pop(model, None)


def _state(model: PreTrainedModel) -> tuple:
    """The state of a model that compiled passes and caches assume.

    Weights, modules and what is set on them, the config (windows, attention), hooks, and modes. Memory of one mode does not
    serve another: autocast caches other dtypes, and inference tensors stay in inference mode.
    """
    modules = list(model.modules())
    weights = tuple((tensor.data_ptr(), tensor.stride()) for tensor in own_tensors(modules))
    # Of what is set, no whole numbers, in which modules may count.
    kinds = tuple(map(type, modules)), tuple(x for one in modules for x in vars(one).values() if type(x) in (bool, float, str))
    # By the ids of their handles, which torch gives once.
    hooks = tuple(tuple(part) for one in modules for part in (one._forward_pre_hooks, one._forward_hooks) if part)
    forwards = tuple(id(one.forward) for one in modules if "forward" in vars(one))  # wrapped by autocast, say
    device = device_of(model).type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    modes = autocast, torch.is_inference_mode_enabled()
    settings = repr(vars(model.config.get_text_config(decoder=True)))
    return weights, kinds, model.dtype, model.device, settings, hooks, forwards, modes


def own_tensors(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Parameters and buffers of `modules` without their children: quick enough for every call."""
    for module in modules:
        own = (*module._parameters.values(), *module._buffers.values())
        yield from (tensor for tensor in own if tensor is not None)
