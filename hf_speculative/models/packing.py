"""Pack the linear layers of a model, and keep them packed from call to call.

`attach` packs, `detach` restores. A layer whose plain weight was read in between is packed again when the next call begins.
See docs/optimize.md.
"""

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import is_compiled, placement_hook
from . import pool
from .packed_layers import HELD, dtypes, is_linear, is_packed, pack, unpack, unsupported_reason
from .packed_parameters import PackedParameters, parameters_of, weight_of
from .products import has_kernel
from .sharding import group_of, is_sharded

#: bytes of a float32 weight below which packing gains less than a packed layer's own Python takes, 5 microseconds
LEAST_BYTES = 2**19
#: why all layers stay plain in compiled passes, for which each subset of packed ones would need a file of its own
PARTIAL = "in compiled passes, since other code refers to some of their weights, or often reads them"


@dataclass
class Packing:
    """The packed layers of one model.

    Attributes:
        layers: the packed ones, each with whether an embedding shares its weight.
        left: the number of plain layers by reason.
        has_small: small layers are packed as well.
    """

    layers: dict[nn.Module, bool] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    has_small: bool = True

    def __str__(self) -> str:
        num_packed, num_plain = sum(map(is_packed, self.layers)), self.left.total()
        left = "".join(f"; {num} stay plain, {reason}" for reason, num in self.left.items())
        if not self.layers:
            return f"none of {num_plain} linear layers is packed{left}"
        waiting = len(self.layers) - num_packed
        left = f"; {waiting} more when the next call begins" * bool(waiting) + left
        num_bytes = sum(map(_num_bytes, self.layers))
        num_copied = sum(_num_bytes(layer) for layer, is_shared in self.layers.items() if is_shared)
        copied = f", {num_copied / 2**20:.0f} MiB of them a second copy" if num_copied else ""
        return (
            f"{num_packed} of {len(self.layers) + num_plain} linear layers are packed ({num_bytes / 2**20:.0f} MiB"
            f"{copied}{'' if has_kernel() else ', in the order of oneDNN, which is slower'}){left}"
        )


_packings: WeakKeyDictionary[PreTrainedModel, Packing] = WeakKeyDictionary()


def packing_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why no weights of `model` can be packed; `None` if some can."""
    kind = next((weight.device.type for weight in parameters_of(model) if weight.device.type != "cpu"), None)
    if kind is not None:
        return f"is on {kind}, and packed weights are for CPUs"
    if not dtypes():
        return "runs on a CPU or a torch without packed products"
    if is_sharded(model) or group_of(model) is not None:
        return "is run by several processes"
    if getattr(model, "hf_quantizer", None) is not None:
        return "is quantised"
    if any(placement_hook(module) is not None for module in model.modules()):
        return "is offloaded, or spread over devices"
    if any(is_compiled(module) for module in model.modules()):
        return "is compiled"
    return None


def pack_weights(model: PreTrainedModel, has_small: bool = False, only: Collection[str] | None = None) -> None:
    """Pack the layers of `model` that can be packed; a later call may add small layers.

    Args:
        has_small: float32 weights below `LEAST_BYTES` as well: a layer of a compiled pass takes no Python.
        only: these layers alone, by name.
    """
    known = _packings.get(model)
    if known is not None and has_small <= known.has_small:
        renew(model)
        return
    unpack_weights(model)
    packing = _packings[model] = Packing(has_small=has_small)
    if packing_unsupported_reason(model) is not None:
        return
    pool.kept(model).artifacts.clear()  # which hold weights
    layers = linear_layers(model)
    plain = {layer: is_shared for layer, is_shared in layers.items() if not is_packed(layer)}
    if any(unsupported_reason(layer, is_shared) == HELD for layer, is_shared in plain.items()):
        gc.collect()  # torch.export leaves reference cycles that hold a model's weights
    if only is not None:
        among = {model.get_submodule(name) for name in only}
        layers = {layer: is_shared for layer, is_shared in layers.items() if layer in among}
    with torch.no_grad(), torch.inference_mode(False):
        for layer, is_shared in layers.items():
            # possibly as a part of another model
            if (reason := None if is_packed(layer) else unsupported_reason(layer, is_shared)) is not None:
                packing.left[reason] += 1
            elif only is None and not has_small and is_small(layer):
                packing.left["small, and not faster packed"] += 1
            elif is_packed(layer) or pack(layer, is_shared):
                packing.layers[layer] = is_shared
            else:
                packing.left[HELD] += 1
    _give_back_memory()


def linear_layers(model: PreTrainedModel) -> dict[nn.Module, bool]:
    """The layers that may be packed, each with whether an embedding shares its weight.

    Left out: the first parameter of a model, which `model.device` and `model.dtype` read.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    firsts = {id(next(parameters_of(part), None)) for part in parts}
    shared = {id(weight_of(module)) for module in model.modules() if isinstance(module, nn.Embedding)}
    places = {module: id(weight_of(module)) for module in model.modules() if is_linear(module)}
    return {module: place in shared for module, place in places.items() if place in shared or place not in firsts}


def is_small(layer: nn.Module) -> bool:
    """Whether eager passes gain nothing from packing it; plain bfloat16 products are slow at any size."""
    return weight_of(layer).dtype == torch.float32 and _num_bytes(layer) < LEAST_BYTES


def _num_bytes(layer: nn.Module) -> int:
    weight = weight_of(layer)
    return weight.nelement() * weight.element_size()


def renew(model: PreTrainedModel | None) -> None:
    """At the start of a call, pack restored layers of `model` again, unless other code refers to their weights."""
    packing = None if model is None else _packings.get(model)
    if packing is None:
        return
    num_renewed = 0
    with torch.no_grad(), torch.inference_mode(False):
        for layer, is_shared in packing.layers.items():
            if is_shared and isinstance(layer._parameters, PackedParameters):
                layer._parameters.check()
            if not is_packed(layer) and is_linear(layer) and unsupported_reason(layer, is_shared) is None:
                num_renewed += pack(layer, is_shared)
    if num_renewed:
        _give_back_memory()


def unpack_weights(model: PreTrainedModel | None) -> None:
    """Undo `pack_weights`; a model that was not packed stays as it is."""
    packing = None if model is None else _packings.pop(model, None)
    if packing is not None:
        for layer in packing.layers:
            unpack(layer)
        _give_back_memory()


def unpack_partial(model: PreTrainedModel) -> None:
    """If some layers that were packed are plain now, unpack the others as well, until the next `attach`."""
    packing = _packings.get(model)
    if packing is not None and not all(map(is_packed, packing.layers)):
        unpack_weights(model)
        _packings[model] = Packing(left=Counter({PARTIAL: len(packing.layers)}))


def are_packed(model: PreTrainedModel | None) -> bool:
    """Whether its weights are packed at the start of each call."""
    return model in _packings and bool(_packings[model].layers)


def describe(model: PreTrainedModel) -> str:
    """Describe the weights of `model` for `check`."""
    reason = packing_unsupported_reason(model)
    if model in _packings:
        return str(_packings[model]) if reason is None else f"not packed: {reason}"
    return "plain; `attach` packs them, unless `optimize=False`" if reason is None else f"plain: {reason}"


def _give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps up to a quarter of it, where weights are below 32 MiB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
