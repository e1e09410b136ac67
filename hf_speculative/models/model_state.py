"""State that sources of drafts keep with a model from call to call: answers, and what they learned."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

_loaded: WeakKeyDictionary[PreTrainedModel, dict[Hashable, Any]] = WeakKeyDictionary()
_kept: WeakKeyDictionary[PreTrainedModel, dict[Hashable, Any]] = WeakKeyDictionary()


def kept_with(model: PreTrainedModel) -> dict[Hashable, Any]:
    """By keys that the sources choose."""
    return _kept.setdefault(model, {})


def loaded_for(model: PreTrainedModel) -> dict[Hashable, Any]:
    """What no text changes: models and texts that were loaded to draft for the model, and what was found by trying it out."""
    return _loaded.setdefault(model, {})


def forget(model: PreTrainedModel) -> None:
    """Drop all state kept with the model, and what was loaded for it or found of its weights and modules, which may change."""
    _kept.pop(model, None)
    _loaded.pop(model, None)


@contextmanager
def alone(model: PreTrainedModel, own: dict[Hashable, Any], seed: int) -> Iterator[None]:
    """A call that starts from `seed`, with `own` kept; random numbers of all devices and what is kept go on as before."""
    devices = range(torch.cuda.device_count()) if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), keeping(model, own):
        torch.manual_seed(seed)
        yield


@contextmanager
def keeping(model: PreTrainedModel, own: dict[Hashable, Any]) -> Iterator[None]:
    """Use `own` as the model's state in a block of code, so that compared settings do not learn from each other's texts."""
    before = kept_with(model)
    _kept[model] = own
    try:
        yield
    finally:
        _kept[model] = before
