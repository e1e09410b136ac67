"""Bind a compiled pass to a model's own weights, without copies: they may change in place."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..hf_compat import without_modes
from ..hf_compat.compiled import CompiledFunction
from .ragged_cache import Layout, in_rows
from .traced_cache import by_layer


class BoundPass:
    """A compiled pass on a model's weights, or a piece of one.

    Attributes:
        layouts: of the layers, if it is a whole pass.

    Args:
        compiled: the file's function.
        weights: by the names that it has for them.
    """

    layouts: Sequence[Layout] = ()

    def __init__(self, compiled: CompiledFunction, weights: Mapping[str, Tensor]):
        self.compiled = compiled
        with torch.inference_mode(False):
            # torch keeps the very tensors it is given here for good: it is given some of our own, which are emptied in the end.
            aliases = {name: weight.detach() for name, weight in weights.items()}
            compiled.load_constants(aliases)
        self.aliases = list(aliases.values())
        weakref.finalize(self, _empty, self.aliases).atexit = False

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        return self.compiled.run(inputs)


class PassOfPieces:
    """Run the pieces of a pass in order, with the interface of a `BoundPass`.

    Args:
        pieces: each a `BoundPass`, see `pieces_of`.
        num_places: the tensors that the first one takes.
        recorded: the layers whose states a pass returns.
        layouts: of the layers.
    """

    def __init__(self, pieces: list[Any], num_places: int, recorded: tuple[int, ...], layouts: Sequence[Layout]):
        self.pieces, self.num_places, self.recorded, self.layouts = pieces, num_places, recorded, layouts
        self.before, *self.layers, self.after = pieces
        self.kept_at: dict[int, list[int]] = {}
        for place, layer in enumerate(recorded):
            self.kept_at.setdefault(layer % (len(self.layers) + 1), []).append(place)

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        states, places, *shared = self.before(inputs[: self.num_places])
        slots, columns, record = inputs[4], *inputs[self.num_places : self.num_places + 2]
        for index, (layer, cached) in enumerate(zip(self.layers, by_layer(self.layouts, inputs), strict=True)):
            for place in self.kept_at.get(index, ()):
                size = states.shape[2]
                rows, slots_of_rows = in_rows(places, places.device)
                record[rows, slots_of_rows, place * size : (place + 1) * size] = states
            (states,) = layer([states, places, slots, *shared, *cached])
        return self.after([states, columns])


@torch.inference_mode(False)
def _empty(aliases: list[Tensor]) -> None:
    # Garbage may be collected while a model is loaded on "meta", or traced on fake tensors.
    with without_modes():
        for alias in aliases:
            alias.data = torch.zeros(0, device="cpu")
