"""Bind a compiled pass to a model's own weights, plain and packed, without copies.

A packed weight may be restored at any moment, by code that reads it (`packed_parameters`). The pass is told, lets go of
all weights, and is not run again: the call goes on eagerly, and the next call binds another pass.
"""

import threading
import weakref
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..hf_compat import without_modes
from ..hf_compat.compiled import CompiledFunction
from .packed_parameters import PackedParameters
from .places import in_rows
from .traced import NUM_PLACES


class Moved(RuntimeError):
    """A packed weight became plain."""


class BoundPass:
    """A compiled pass on a model's weights: they are not copied, and plain ones may change in place.

    Args:
        compiled: the file's function.
        plain: weights by the names that it has for them.
        packed: the parameters of packed layers, by the same names.

    Raises:
        Moved: one of these is packed no more.
    """

    def __init__(self, compiled: CompiledFunction, plain: Mapping[str, Tensor], packed: Mapping[str, PackedParameters]):
        self.compiled, self.packed = compiled, list(packed.values())
        self.lock, self.is_over = threading.Lock(), False
        read = {name: parameters.read_by(self) for name, parameters in packed.items()}
        if moved := [name for name, weight in read.items() if weight is None]:
            raise Moved(f"{moved[0]}, which was packed, became plain")
        weights = dict(plain) | cast("dict[str, Tensor]", read)
        self.places = [id(weights[name]) for name in packed]
        with self.lock, torch.inference_mode(False):
            # torch keeps the very tensors it is given here for good: it is given some of our own, which are emptied in the end.
            aliases = {name: weight.detach() for name, weight in weights.items()}
            compiled.load_constants(aliases)
            self.aliases = list(aliases.values())
            self.empty = weakref.finalize(self, _empty, self.aliases)
            self.empty.atexit = False
            if self.is_over:
                self.empty()

    def __call__(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """Run the pass; `None`, without running it, if a packed weight became plain."""
        if not all(parameters.is_up_to_date() for parameters in self.packed):
            return None
        with self.lock:
            return None if self.is_over else self.compiled.run(inputs)

    def is_current(self) -> bool:
        """Whether its packed weights are still those of the model."""
        return not self.is_over and self.places == [id(parameters.packed) for parameters in self.packed]

    def release(self) -> None:
        """Release all weights, once a running pass is over."""
        with self.lock:
            self.is_over = True
            if hasattr(self, "empty"):
                self.empty()


class PassOfPieces:
    """Run the pieces of a pass in order, with the interface of a `BoundPass`.

    Args:
        pieces: each a `BoundPass`, see `pieces_of`.
        recorded: the layers whose states a pass returns.
    """

    def __init__(self, pieces: list[Any], recorded: tuple[int, ...]):
        self.pieces, self.recorded = pieces, recorded
        self.before, *self.layers, self.after = pieces
        self.kept_at: dict[int, list[int]] = {}
        for place, layer in enumerate(recorded):
            self.kept_at.setdefault(layer % (len(self.layers) + 1), []).append(place)

    def __call__(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """Run the pass. If it ends midway, the next pass overwrites the keys and values that it wrote."""
        num_layers = len(self.layers)
        found = self.before(inputs[:NUM_PLACES])
        if found is None:
            return None
        states, places, *shared = found
        slots, columns, record = inputs[4], inputs[NUM_PLACES], inputs[NUM_PLACES + 1]
        caches = inputs[len(inputs) - 2 * num_layers :]
        for index, layer in enumerate(self.layers):
            for place in self.kept_at.get(index, ()):
                size = states.shape[2]
                rows, slots_of_rows = in_rows(places, places.device)
                record[rows, slots_of_rows, place * size : (place + 1) * size] = states
            found = layer([states, places, slots, *shared, caches[index], caches[num_layers + index]])
            if found is None:
                return None
            (states,) = found
        return self.after([states, columns])

    def is_current(self) -> bool:
        """Whether the packed weights of all pieces are still those of the model."""
        return all(piece.is_current() for piece in self.pieces)


@torch.inference_mode(False)
def _empty(aliases: list[Tensor]) -> None:
    # Garbage may be collected while a model is loaded on "meta", or traced on fake tensors.
    with without_modes():
        for alias in aliases:
            nothing = torch.zeros(1, 1, device="cpu")
            alias.data = nothing.to_mkldnn() if alias.is_mkldnn else nothing[:0]
