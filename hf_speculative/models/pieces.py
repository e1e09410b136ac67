"""Cut a language model's pass into pieces to compile: the part before the decoder layers, each layer, the part after them.

Layers that differ in weights alone share one compiled function, so that thirty layers compile in the time of one. How a model
calls its layers is recorded from a run on stand-ins, see `pieces_of`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import Cache

from ..hf_compat import tree_map
from .attention import fold, folds_by
from .masks import AttentionLayers, Nodes
from .ragged_cache import Layout, fed_places, for_model
from .shallow import LayerProxy, decoder_layers, duplicate, exchanged
from .traced import NUM_PLACES, SAMPLES, Pass
from .traced_cache import TracedCache

#: what `forward` of a piece takes, in passes of the two `SAMPLES`
Samples: TypeAlias = Sequence[tuple[Tensor, ...]]


class CannotCut(RuntimeError):
    """The model does not run its layers in a plain sequence."""


class Given(Enum):
    """An argument of a layer that differs from layer to layer."""

    STATES, CACHE = "states", "cache"


@dataclass(frozen=True)
class Shared:
    """A tensor that layers get beside their states.

    Attributes:
        index: of the tensor.
        folded: of a mask, the indices of its folded forms, by groups of query heads and dtype.
    """

    index: int
    folded: tuple[tuple[tuple[int, torch.dtype], int], ...] = ()


@dataclass
class Watch:
    """The recorded calls of a model's layers.

    Attributes:
        num_layers: of the model.
        num_tensors: that its layers cache.
        result: the last layer's output; `None` while the layers run.
        num_others: what layers give beside their states, in a tuple; `None`: they give no tuple.
        states: what the layers are given one after the other.
        calls: arguments and named arguments of each, with `Given` and `Shared` in the place of tensors.
        shared: the tensors that `Shared` names.
    """

    num_layers: int
    num_tensors: int
    result: Tensor | None = None
    num_others: int | None = None
    states: list[Tensor] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)

    @property
    def no_caches(self) -> list[Tensor]:
        """In the place of what layers cache, which stand-ins do not read."""
        return [torch.empty(0)] * self.num_tensors

    def begin(self, result: Tensor | None = None) -> None:
        self.result, self.states, self.calls, self.shared = result, [], [], []

    def call(self, args: tuple, kwargs: dict) -> Tensor | tuple[Tensor | None, ...]:
        """Record a layer's call, and return a stand-in for its output."""
        states = args[0] if args else kwargs.get("hidden_states")
        if not isinstance(states, Tensor) or (self.states and states is not self.states[-1]):
            raise CannotCut("layers are given something else than what the layer before gives")
        self.calls.append(tree_map(lambda value: self._noted(value, states), (args, kwargs)))
        if not self.states:
            self.states.append(states)
        is_last = len(self.calls) == self.num_layers
        output = self.result if is_last and self.result is not None else states.clone()
        self.states.append(output)
        return output if self.num_others is None else (output, *[None] * self.num_others)

    def _noted(self, value: Any, states: Tensor) -> Any:
        if value is states:
            return Given.STATES
        if isinstance(value, Cache):
            return Given.CACHE
        if isinstance(value, Tensor):
            folded = vars(value).get("folded", {})
            return Shared(self._index(value), tuple((kind, self._index(mask)) for kind, mask in folded.items()))
        if not isinstance(value, bool | int | float | str | None):
            raise CannotCut(f"layers are given a {type(value).__name__}")
        return value

    def _index(self, tensor: Tensor) -> int:
        for index, known in enumerate(self.shared):
            if known is tensor:
                return index
        self.shared.append(tensor)
        return len(self.shared) - 1


class WatchedLayer(LayerProxy):
    """Takes the place of a layer, and records its calls."""

    def forward(self, *args, **kwargs):
        return self.state.call(args, kwargs)


class FoldedMasks(AttentionLayers):
    """Masks of a pass are made additive, once for all layers, folded forms included.

    Args:
        layers: whose masks.
        groups: the numbers of query heads for a key head.
    """

    def __init__(self, layers: AttentionLayers, groups: list[int]):
        vars(self).update(vars(layers))
        self.groups = groups

    def explicit(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        mask = super().explicit(visible, dtype)
        if mask.dtype == torch.bool:
            mask = torch.zeros((), dtype=dtype).where(mask, float("-inf"))
        vars(mask)["folded"] = {(groups, dtype): fold(mask, groups, mask.shape[2])[:] for groups in self.groups}
        return mask


class Around(nn.Module):
    """A part of a `Pass` before or after the layers."""

    def __init__(self, whole: Pass, watch: Watch, samples: Samples):
        super().__init__()
        self.whole, self.watch, self.samples = whole, watch, samples


class Before(Around):
    """The part of a `Pass` before the layers: from its first inputs to states and shared tensors."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """
        Args:
            tensors: those of `Pass.places`.

        Returns:
            States `(batch, q, hidden)`, the slots of the columns `(batch, q)`, for recurrent layers what `Nodes.among` gives,
            and what layers share.
        """
        input_ids, first, seen, bounds, slots, *tree = tensors[:NUM_PLACES]
        self.watch.begin()
        self.whole(*tensors, slots[:1], *self.watch.no_caches)
        if len(self.watch.calls) != self.watch.num_layers:
            raise CannotCut("some layers are not run, or more than once")
        queries, places = fed_places(first, seen, bounds, input_ids.shape[1])
        are_recurrent = self.whole.layers.are_recurrent
        ancestors = [Nodes(*tree).among(queries, places == bounds[:, :1])] if are_recurrent else []
        return self.watch.states[0], places, *ancestors, *self.watch.shared


class Layer(nn.Module):
    """A decoder layer, as the model calls it.

    Args:
        call: arguments and named arguments, as in `Watch.calls`.
        num_layers: of the model: where layers of a cache may be looked for.
        are_recurrent: some of the model's layers.
        layout: what it caches.
    """

    def __init__(self, layer: nn.Module, call: Any, num_layers: int, are_recurrent: bool, layout: Layout, samples: Samples):
        super().__init__()
        self.layer, self.call, self.num_layers, self.are_recurrent = layer, call, num_layers, are_recurrent
        self.layout, self.samples = layout, samples

    def forward(self, *tensors: Tensor) -> Tensor:
        """
        Args:
            tensors: states `(batch, q, hidden)`, the slots `(batch, q)` of the columns, `(n,)` those that attention looks at,
                what `Nodes.among` gives if layers are recurrent, what is shared, and the tensors of its layout.

        Returns:
            States `(batch, q, hidden)`.
        """
        num_given = len(tensors) - self.layout.num_tensors
        states, places, slots, *shared = tensors[:num_given]
        cache = TracedCache([self.layout], [tensors[num_given:]])
        for one in filter(None, (cache, cache.cross)):
            one.layers *= self.num_layers
        cache.slots, cache.end = places, slots.shape[0]
        ancestors = shared.pop(0) if self.are_recurrent else None
        cache.recurrence.enter(places.shape[1], places >= cache.end, ancestors)

        def given(value: Any) -> Any:
            if isinstance(value, Shared) and value.index >= len(shared):
                return None  # models that are not compiled drop the mask over a single column
            if isinstance(value, Shared):
                vars(shared[value.index])["folded"] = {kind: shared[index] for kind, index in value.folded}
                return shared[value.index]
            if value is Given.CACHE:
                return for_model(cache)
            return states if value is Given.STATES else value

        args, kwargs = tree_map(given, self.call)
        output = self.layer(*args, **kwargs)
        cache.recurrence.leave()
        return output[0] if isinstance(output, tuple) else output


class After(Around):
    """The part of a `Pass` after the layers: logits of some columns, and their argmax."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            tensors: states `(batch, q, hidden)`, and the columns `(m,)` whose logits are computed.
        """
        states, columns = tensors
        num_rows, width = states.shape[:2]
        ids = torch.zeros(num_rows, width, dtype=torch.long)
        rows, slots = ids[:, 0], torch.arange(width)
        tree = rows + width, ids[:, :1], ids[:, :1, None] == 0
        self.watch.begin(states)
        bounds, unread = ids[:, :1].expand(-1, 3), self.whole.nothing_encoded(num_rows)
        return self.whole(ids, rows, rows, bounds, slots, *tree, *unread, columns, *self.watch.no_caches)


def pieces_of(whole: Pass) -> list[nn.Module]:
    """Cut a pass at its model's layers, which are found by running it on stand-ins for them.

    Returns:
        `Before`, a `Layer` each, and `After`.

    Raises:
        CannotCut: something else than states goes from layer to layer, or layers are not called one after the other.
    """
    model, path = whole.model, decoder_layers(whole.model)
    if path is None:
        raise CannotCut("there is no single list of decoder layers")
    if any(hasattr(module, "compute_bias") for module in model.modules()):
        raise CannotCut("layers add the bias that the first one computes")
    layers = list(model.get_submodule(path))
    if any(layer % (len(layers) + 1) == len(layers) for layer in whole.recorded):
        raise CannotCut("the states behind the last layer are asked for")
    watch = Watch(len(layers), whole.num_tensors)
    watched = {f"model.{path}.{index}": WatchedLayer(_hollow(layer), watch) for index, layer in enumerate(layers)}
    hollow, generator = exchanged(whole, watched), torch.Generator().manual_seed(0)
    hollow.layers = FoldedMasks(whole.layers, folds_by(model))
    places = [whole.places(*sizes[:4], generator) for sizes in SAMPLES]
    before = Before(hollow, watch, places)
    given = _given(before)
    samples = {
        layout: [
            (states, slots, fed[4], *shared, *whole.random_cache(layout, *sizes[:3], generator))
            for (states, slots, *shared), fed, sizes in zip(given, places, SAMPLES, strict=True)
        ]
        for layout in {*whole.layouts}
    }
    own = [
        Layer(layer, call, len(layers), whole.layers.are_recurrent, layout, samples[layout])
        for layer, call, layout in zip(layers, watch.calls, whole.layouts, strict=True)
    ]
    columns = (torch.arange(num_kept) for *_, num_kept in SAMPLES)
    after = [(states, kept) for (states, *_), kept in zip(given, columns, strict=True)]
    return [before, *own, After(hollow, watch, after)]


def _hollow(layer: nn.Module) -> nn.Module:
    """What a model may ask of a layer beside its `forward`; without its weights."""
    twin = duplicate(layer)
    twin._parameters, twin._buffers, twin._modules = {}, {}, {}
    return twin


@torch.no_grad()
def _given(before: Before) -> list[tuple[Tensor, ...]]:
    for before.watch.num_others in (None, 0, 1):
        try:
            return [before(*places) for places in before.samples]
        except Exception as error:  # a model that does something with what its layers give
            cause = error
    if isinstance(cause, CannotCut):
        raise cause
    raise CannotCut(f"it does not run on stand-ins for its layers ({type(cause).__name__}: {cause})") from cause
