"""What the products of linear layers take on this machine, by how their weights lie: timed once, and noted in a file.

Which is faster depends on the processor and on the size. Timed anew in each process, layers that are nearly as fast either way
would lie now so, now so, and each time another file of compiled passes would be needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from filelock import FileLock
from torch import Tensor, nn

from ..reports.timing import timed
from .artifacts import folder, processor
from .packed_layers import PLAIN, linear, orders_of, packed_weight
from .packed_parameters import weight_of
from .packed_units import Unit

#: numbers of columns that are timed
WIDTHS = (1, 5)
REPEATS = 3
#: layers that are alike are timed in turn, so many bytes of them: more than caches hold
NUM_BYTES = 2**26
#: settings under which a processor does less than it can
LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
#: beside the orders of `packed_layers`: weights as they are
AS_THEY_ARE = "plain"

#: by order, seconds of a unit's products for each of `WIDTHS`
Seconds = dict[str, list[float]]
_known: dict[str, Seconds] = {}


def seconds_of(units: Sequence[Unit]) -> Seconds:
    """What the products of a unit take, of `units` that are of one `kind`."""
    key = kind(units[0])
    if key not in _known:
        _known[key] = _noted(key, partial(_time, units))
    return _known[key]


def kind(unit: Unit) -> str:
    """What the time of a unit's product depends on."""
    layer, weights = unit.layers[0], list(map(weight_of, unit.layers))
    shapes = [list(weight.shape) for weight in weights]
    name = PLAIN.get(type(layer), type(layer)).__name__
    return json.dumps([name, shapes, str(weights[0].dtype), torch.get_num_threads()])


def fastest(seconds: Seconds) -> str:
    """The order in which packed products take least, over `WIDTHS` together."""
    return min((order for order in seconds if order != AS_THEY_ARE), key=lambda order: sum(seconds[order]))


def note() -> Path:
    """The file with what is known of this machine; delete it to have all of it timed again."""
    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability(), processor(), torch.__version__]
    machine += [os.environ.get(name, "") for name in LIMITS]
    return folder() / f"products-{hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:16]}.json"


def _noted(key: str, measure: Callable[[], Seconds]) -> Seconds:
    """What the note says, or else what is measured now, which it says from then on."""
    place = note()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            noted = json.loads(place.read_text()) if place.exists() else {}
            if key not in noted:
                noted[key] = measure()
                with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as file:
                    json.dump(noted, file, indent=1)
                Path(file.name).replace(place)
            return noted[key]
    except OSError:  # a folder that cannot be written: known in this process only
        return measure()


def _time(units: Sequence[Unit]) -> Seconds:
    """Several units in turn, for in a pass weights come from memory and not from the processor's caches."""
    layer, dtype = units[0].layers[0], weight_of(units[0].layers[0]).dtype
    plain = cast("type[nn.Linear]", PLAIN.get(type(layer), type(layer)))
    some = units[: max(1, NUM_BYTES // units[0].num_bytes)]
    products: dict[str, list[Callable[[Tensor], Tensor]]] = {
        AS_THEY_ARE: [partial(plain.forward, cast(nn.Linear, layer)) for unit in some for layer in unit.layers]
    }
    for order in orders_of(dtype):
        weights = [packed_weight(unit.layers, order) for unit in some]
        num_inputs = weights[0].shape[1]
        products[order] = [partial(linear, packed=weight) for weight in weights]
    found: Seconds = {order: [] for order in products}
    for width in WIDTHS:
        input = torch.ones(width, num_inputs, dtype=dtype)
        spent: dict[str, list[float]] = {order: [] for order in products}
        for _ in range(REPEATS + 1):
            for order, calls in products.items():
                spent[order].append(timed(partial(_each, calls, input), input.device)[1])
        for order, seconds in spent.items():
            # The least, of which the first is a warm-up: what else the machine does is no reason to do without.
            found[order].append(min(seconds[1:]) / len(some))
    return found


def _each(products: Sequence[Callable[[Tensor], Tensor]], input: Tensor) -> None:
    for product in products:
        product(input)
