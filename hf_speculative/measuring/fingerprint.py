"""Tells whether the arguments of a call are those of an earlier run: weights, logits processors, anything else."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pickle import PicklingError
from types import CellType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: entries of each weight that are looked at
NUM_SAMPLES = 1024
#: the golden ratio of 2^32, whose multiples are spread over all rows and columns of a matrix (Knuth's multiplicative hashing)
SPREAD = 2654435769
#: what torch keeps in each module: its weights come by name, and hooks are not told apart
OF_ANY_MODULE = vars(nn.Module()).keys()


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that change if anything in `value` changes, and are the same in every process.

    They cover a sample of each weight of a model, each entry of a tensor or array, a function's qualified name and closure. Of
    any other object they cover what pickle would keep; of what cannot be pickled, such as locks, the type.
    """
    return _digest(value, ()).hex()[:16]


def _digest(value: Any, around: tuple[int, ...]) -> bytes:
    """
    Args:
        around: ids of the objects that hold this one.
    """
    if id(value) in around:
        return _hashed("around", around[::-1].index(id(value)))
    inner = partial(_digest, around=(*around, id(value)))
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return _hashed(type(value).__name__, repr(value))
        case PreTrainedModel():
            return _hashed("model", *_weights(value))  # its class is another one where FSDP shards it
        case nn.Module():
            own = [{n: v for n, v in vars(module).items() if n not in OF_ANY_MODULE} for module in value.modules()]
            return _hashed(inner(type(value)), inner(own), *_weights(value))
        case Tensor():
            return _hashed(value.dtype, list(value.shape), *_entries(value, value.numel()))
        case np.ndarray() if not value.dtype.hasobject:
            return _hashed(value.dtype, value.shape, value.tobytes())
        case PreTrainedTokenizerBase():
            return _hashed(inner(type(value)), json.dumps(value.get_vocab(), sort_keys=True))
        case Mapping():
            return _hashed("mapping", *sorted(inner(key) + inner(item) for key, item in value.items()))
        case set() | frozenset():
            return _hashed("set", *sorted(map(inner, value)))
        case list() | tuple() | np.ndarray():
            return _hashed("sequence", *map(inner, value))
        case ModuleType():
            return _hashed("module", value.__name__)
        case CellType():
            return inner([value.cell_contents] if value != CellType() else [])
    if inspect.isroutine(value) or isinstance(value, type):
        names = ("__self__", "__closure__", "__defaults__", "__kwdefaults__") if inspect.isroutine(value) else ()
        return _hashed(value.__module__, value.__qualname__, *(inner(getattr(value, name, None)) for name in names))
    try:
        parts = value.__reduce_ex__(4)
    except (TypeError, RuntimeError, PicklingError):  # it cannot be pickled
        return inner(type(value))
    if isinstance(parts, str):
        return _hashed(inner(type(value)), parts)
    function, arguments, *rest = parts
    return _hashed(inner(function), inner(arguments), *(inner(_listed(part)) for part in rest))


def _listed(part: Any) -> Any:
    """The entries of a list or mapping come as iterators."""
    return list(part) if isinstance(part, Iterator) else part


def _weights(model: nn.Module) -> Iterator[Any]:
    """Name, dtype, shape and a sample of each weight; buffers made from the config, such as rotary tables, are left out."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}"] = buffer
    for name, tensor in sorted(tensors.items()):
        yield from (name, tensor.dtype, list(tensor.shape), *_entries(tensor, NUM_SAMPLES))


def _entries(tensor: Tensor, num_samples: int) -> Iterator[bytes]:
    """The bytes of so many entries, wherever and however they are stored; none of a tensor without data."""
    if hasattr(tensor, "full_tensor"):  # a shard of one
        tensor = tensor.full_tensor()
    if hasattr(tensor, "__tensor_flatten__"):  # a quantized one is made of others
        for name in tensor.__tensor_flatten__()[0]:
            yield from _entries(getattr(tensor, name), num_samples)
    elif not tensor.is_meta:
        tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
        entries = tensor.detach().reshape(-1).view(torch.uint8).view(tensor.numel(), tensor.element_size())
        if len(entries) > num_samples:
            entries = entries[torch.arange(num_samples, device=tensor.device) * SPREAD % len(entries)]
        yield entries.cpu().numpy().tobytes()


def _hashed(*parts: Any) -> bytes:
    """Of parts whose lengths are told apart."""
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode(errors="backslashreplace")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()
