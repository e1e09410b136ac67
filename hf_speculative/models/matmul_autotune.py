"""What the products of linear layers take on this machine, by how their weights lie: timed once, and noted in a file.

Which is faster depends on the processor and on the size. Timed anew in each process, layers that are nearly as fast either way
would lie now so, now so, and each time another file of compiled passes would be needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn
from transformers import Conv1D

from ..reports.timing import timed
from ..version import __version__
from .artifacts import folder
from .described import processor
from .packed_layers import PLAIN, ROWS, TRANSPOSED, linear, orders_of, packed_weight
from .packed_parameters import weight_of
from .packed_units import Unit

#: numbers of columns that are timed
WIDTHS = (1, 5)
REPEATS = 6
#: bytes of weights that are timed in turn, and how many weights at most
NUM_BYTES, MOST_COPIES = 2**25, 256
#: settings under which a processor does less than it can
LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
#: beside the orders of `packed_layers`: weights as they are
AS_THEY_ARE = "plain"

#: by order, seconds of a unit's products for each of `WIDTHS`
Seconds = dict[str, list[float]]
_known: dict[str, Seconds] = {}


def seconds_of(unit: Unit) -> Seconds:
    """What its products take, and those of all units of its `kind`."""
    key = kind(unit)
    if key not in _known:
        _known[key] = _noted(key, partial(_time, unit))
    return _known[key]


def kind(unit: Unit) -> str:
    """What is timed apart: not by the number of threads, for compiled passes are one file for all of them."""
    layer, weights = unit.layers[0], list(map(weight_of, unit.layers))
    shapes = [list(weight.shape) for weight in weights]
    return json.dumps([PLAIN.get(type(layer), type(layer)).__name__, shapes, str(weights[0].dtype)])


def fastest(seconds: Seconds, may_stay_plain: bool = False) -> str:
    """The order in which products take least, over `WIDTHS` together; `AS_THEY_ARE` if they `may_stay_plain` and that is it."""
    orders = (order for order in seconds if may_stay_plain or order != AS_THEY_ARE)
    return min(orders, key=lambda order: sum(seconds[order]))


def note() -> Path:
    """The file with what is known of this machine; delete it to have all of it timed again."""
    machine = [__version__, torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability(), processor()]
    machine += [os.environ.get(name, "") for name in LIMITS]
    return folder() / f"products-{hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:16]}.json"


def _noted(key: str, measure: Callable[[], Seconds]) -> Seconds:
    """What the note says, or else what is measured now, which it says from then on."""
    place = note()
    if (found := _read(place).get(key)) is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            noted = _read(place)
            if key not in noted:
                noted[key] = measure()
                _write(place, noted)
            return noted[key]
    except OSError:  # a folder that cannot be written: known in this process only
        return measure()


def _read(place: Path) -> dict[str, Seconds]:
    """What a note says; nothing, if it is not there, or is none of ours."""
    try:
        noted = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _write(place: Path, noted: dict[str, Seconds]) -> None:
    """At once, for those who read meanwhile."""
    part = place.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps(noted, indent=1))
        part.replace(place)
    except OSError:  # a disk that is full, say: known in this process only
        part.unlink(missing_ok=True)


@torch.autocast("cpu", enabled=False)
def _time(unit: Unit) -> Seconds:
    """Of many weights of its shapes in turn: more than the nearest caches hold, and again and again, as in passes."""
    shapes, dtype = [tuple(weight_of(layer).shape) for layer in unit.layers], weight_of(unit.layers[0]).dtype
    is_conv = PLAIN.get(type(unit.layers[0]), type(unit.layers[0])) is Conv1D
    share = min(1.0, NUM_BYTES / unit.num_bytes)  # of a large weight a part is timed
    num_copies = min(MOST_COPIES, max(1, NUM_BYTES // unit.num_bytes))
    alike = [[_layer(shape, is_conv, dtype, share) for shape in shapes] for _ in range(num_copies)]
    inputs = [torch.ones(width, shapes[0][0 if is_conv else 1], dtype=dtype, device="cpu") for width in WIDTHS]
    found = {AS_THEY_ARE: _least([layer.forward for layers in alike for layer in layers], inputs)}
    as_plain = TRANSPOSED if is_conv else ROWS  # of a layer that is packed alone
    for order in (order for order in orders_of(dtype) if len(shapes) > 1 or order != as_plain):
        found[order] = _least([partial(linear, packed=packed_weight(layers, order)) for layers in alike], inputs)
    return {order: [second / num_copies / share for second in seconds] for order, seconds in found.items()}


def _least(products: Sequence[Callable[[Tensor], Tensor]], inputs: Sequence[Tensor]) -> list[float]:
    """Seconds of all products of each input: what else the machine does is no reason to do without."""
    spent = [[timed(partial(_each, products, one), one.device)[1] for _ in range(REPEATS + 1)] for one in inputs]
    return [min(seconds[1:]) for seconds in spent]  # after a warm-up


def _layer(shape: tuple[int, int], is_conv: bool, dtype: torch.dtype, share: float) -> nn.Module:
    """A layer with a weight of this shape, or of a `share` of its outputs."""
    num_in, num_out = shape if is_conv else shape[::-1]
    num_out = max(1, int(num_out * share))
    with torch.device("meta"):
        layer = Conv1D(num_out, num_in) if is_conv else nn.Linear(num_in, num_out, bias=False)
    # Zeros would be one page of memory, over and over.
    weight = torch.full(layer.weight.shape, 0.01, dtype=dtype, device="cpu")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if is_conv:
        layer.bias = nn.Parameter(torch.zeros(num_out, dtype=dtype, device="cpu"), requires_grad=False)
    return layer


def _each(products: Sequence[Callable[[Tensor], Tensor]], input: Tensor) -> None:
    for product in products:
        product(input)
