"""Which linear layers of a model run on packed weights, whether that is faster here, and keeping it so from call to call.

`attach` packs, `detach` puts everything back. A layer that was asked for its plain weight in between is packed again when the
next call begins. See docs/packed-weights.md.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import is_compiled, placement_hook
from . import pool
from .matmul_autotune import AS_THEY_ARE, WIDTHS, Seconds, fastest, kind, seconds_of
from .packed_layers import HELD, TRANSPOSED, dtypes, is_linear, is_packed, unpack, unsupported_reason
from .packed_parameters import PackedParameters, parameters_of, weight_of
from .packed_units import Unit, linear_layers, parts_of, units_of
from .sharding import group_of, is_sharded

#: "auto" packs a layer if its products take at most this share of the time that they take with plain weights
SHARE = 0.95
#: what a packed layer's own Python takes beside the product, in seconds
OVERHEAD = 5e-6


@dataclass
class Packing:
    """What was packed of one model.

    Attributes:
        units: the linear layers chosen.
        left: why others stay plain: how many by reason.
        seconds: by number of columns, what the products of a pass took with plain and with packed weights when measured.
        num_bytes: of the packed weights; `num_copied`: of those that are there plain as well.
        reach: 0 if the layers are those for which it is faster in eager passes, 1 if in compiled ones, 2 if all that can be.
    """

    units: list[Unit] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=lambda: {width: [0.0, 0.0] for width in WIDTHS})
    num_bytes: int = 0
    num_copied: int = 0
    reach: int = 2

    @property
    def layers(self) -> list[nn.Module]:
        return [layer for unit in self.units for layer in unit.layers]

    def add(self, unit: Unit, seconds: Seconds | None) -> None:
        self.units.append(unit)
        self.num_bytes += unit.num_bytes
        self.num_copied += unit.num_bytes * unit.is_shared
        if seconds is None:
            return  # it was not asked what is faster
        for width, *both in zip(WIDTHS, seconds[AS_THEY_ARE], seconds[unit.order], strict=True):
            self.seconds[width] = [a + b for a, b in zip(self.seconds[width], both, strict=True)]

    def __str__(self) -> str:
        num_packed, num_plain = sum(map(is_packed, self.layers)), self.left.total()
        left = "".join(f"; {num} stay plain, {reason}" for reason, num in self.left.items())
        if not self.layers:
            return f"none of {num_plain} linear layers is packed{left}"
        shares = [
            f"{packed / plain:.2f} of the time at {width} column{'s' * (width > 1)}"
            for width, (plain, packed) in self.seconds.items()
        ]
        waiting = len(self.layers) - num_packed
        left = f"; {waiting} more when the next call begins" * bool(waiting) + left
        num_transposed = sum(len(unit.layers) for unit in self.units if unit.order == TRANSPOSED)
        transposed = f", {num_transposed} of them transposed" * bool(num_transposed)
        copied = f", {self.num_copied / 2**20:.0f} MiB of them a second copy" if self.num_copied else ""
        return (
            f"{num_packed} of {len(self.layers) + num_plain} linear layers are packed ({self.num_bytes / 2**20:.0f} MiB"
            f"{copied}{transposed}): their products take {' and '.join(shares)}{left}"
        )


_packings: WeakKeyDictionary[PreTrainedModel, Packing] = WeakKeyDictionary()


def packing_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why no weights of `model` can be packed; `None` if some can."""
    kind = next((weight.device.type for weight in parameters_of(model) if weight.device.type != "cpu"), None)
    if kind is not None:
        return f"is on {kind}, and packed weights are for CPUs"
    if not dtypes():
        return "runs on a CPU or a torch without oneDNN's packed products"
    if is_sharded(model) or group_of(model) is not None:
        return "is run by several processes"
    if getattr(model, "hf_quantizer", None) is not None:
        return "is quantised"
    if any(placement_hook(module) is not None for module in model.modules()):
        return "is offloaded, or spread over devices"
    if any(is_compiled(module) for module in model.modules()):
        return "is compiled"
    return None


def pack_weights(
    model: PreTrainedModel,
    only_if_faster: bool = True,
    is_compiled: bool = False,
    only: Mapping[str, str] | None = None,
) -> Packing:
    """Packs what can be packed of `model`, or of that what is faster so; more than before, if a later call asks for more.

    Args:
        is_compiled: passes are compiled ahead of time, in which a layer takes no Python.
        only: these layers and no others, by name, with the order of each.
    """
    reach = 2 if not only_if_faster else int(is_compiled)
    known = _packings.get(model)
    if known is not None and reach <= known.reach:
        renew(model)
        return known
    unpack_weights(model)
    packing = _packings[model] = Packing(reach=reach)
    if packing_unsupported_reason(model) is not None:
        return packing
    pool.release_artifact(model)  # which holds weights
    alike: dict[str, list[Unit]] = defaultdict(list)
    among = None if only is None else {model.get_submodule(name): order for name, order in only.items()}
    layers = linear_layers(model)
    if any(
        not is_packed(layer) and unsupported_reason(layer, is_shared) == HELD for layer, is_shared in layers.items()
    ):
        gc.collect()  # what has them may be nobody's: torch.export leaves cycles that refer to a model's weights
    if among is not None and (others := layers.keys() - among.keys()):
        packing.left["not faster packed"] += len(others)
        layers = {layer: is_shared for layer, is_shared in layers.items() if layer in among}
    for unit in units_of(model, layers):
        if (reason := unit.unsupported_reason()) is None:
            alike[kind(unit)].append(unit)
        else:
            packing.left[reason] += len(unit.layers)
    with torch.no_grad(), torch.inference_mode(False):
        for units in alike.values():
            seconds = None
            if among is None:
                seconds = seconds_of(units[0])
                order = _order(units[0], seconds, only_if_faster, is_compiled)
                if order == AS_THEY_ARE:
                    packing.left["not faster packed"] += sum(len(unit.layers) for unit in units)
                    continue
            for unit in units:
                packed = replace(unit, order=order if among is None else among[unit.layers[0]])
                if packed.pack():
                    packing.add(packed, seconds)
                else:
                    packing.left[HELD] += len(unit.layers)
    _give_back_memory()
    return packing


def renew(model: PreTrainedModel | None) -> None:
    """A call begins: layers of `model` that were asked for their weights since are packed again, if nobody has these now."""
    packing = None if model is None else _packings.get(model)
    if packing is None or model is None:
        return
    num_renewed = 0
    packing.units = [unit for whole in packing.units for unit in parts_of(whole)]
    with torch.no_grad(), torch.inference_mode(False):
        for unit in packing.units:
            layer = unit.layers[0]
            if unit.is_shared and isinstance(layer._parameters, PackedParameters):
                layer._parameters.check()
            if (
                not any(map(is_packed, unit.layers))
                and all(map(is_linear, unit.layers))
                and unit.unsupported_reason() is None
            ):
                num_renewed += unit.pack()
    if num_renewed:
        _give_back_memory()


def unpack_weights(model: PreTrainedModel | None) -> None:
    """All of `model` as it was before `pack_weights`; a model that was not packed stays as it is."""
    packing = None if model is None else _packings.pop(model, None)
    if packing is not None:
        for layer in packing.layers:
            unpack(layer)
        _give_back_memory()


def keep_plain(model: PreTrainedModel, reason: str) -> None:
    """Unpack, and pack nothing until the next `attach`."""
    num_layers = len(_packings[model].layers)
    unpack_weights(model)
    _packings[model] = Packing(left=Counter({reason: num_layers}))


def is_partial(model: PreTrainedModel) -> bool:
    """Some layers that were packed once are plain now."""
    return model in _packings and not all(map(is_packed, _packings[model].layers))


def are_packed(model: PreTrainedModel | None) -> bool:
    """Some of its weights are packed whenever a call begins."""
    return model in _packings and bool(_packings[model].units)


def describe(model: PreTrainedModel) -> str:
    """What `check` says about the weights of `model`."""
    reason = packing_unsupported_reason(model)
    if model in _packings:
        return str(_packings[model]) if reason is None else f"not packed: {reason}"
    return "plain; `attach` packs them, unless `optimize=False`" if reason is None else f"plain: {reason}"


def _order(unit: Unit, seconds: Seconds, only_if_faster: bool, is_compiled: bool) -> str:
    """The order in which to pack it, by what its products take; `AS_THEY_ARE` if it is to stay plain."""
    # In bfloat16 plain products are oneDNN's as well, plus the way to its order.
    may_stay_plain = only_if_faster and weight_of(unit.layers[0]).dtype == torch.float32
    order = fastest(seconds, may_stay_plain)
    if not may_stay_plain or is_compiled or order == AS_THEY_ARE:
        return order
    overhead = OVERHEAD * len(unit.layers)
    pairs = zip(seconds[AS_THEY_ARE], seconds[order], strict=True)
    return order if all(packed + overhead <= SHARE * plain for plain, packed in pairs) else AS_THEY_ARE


def _give_back_memory() -> None:
    """glibc keeps the holes between weights that came and went: a quarter of them all, where weights are below 32 MiB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
