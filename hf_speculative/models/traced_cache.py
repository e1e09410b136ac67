"""What layers cache, as inputs of a pass that is traced."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from ..hf_compat import LinearAttentionLayer
from .masks import AttentionLayers
from .ragged_cache import Layout, RaggedRecurrentLayer
from .recurrent_cache import Recurrence
from .stepped import calls
from .steps import AtOnce
from .written import StateLayout, held_by


class TracedLayer(RaggedRecurrentLayer):
    """What one layer caches, in a pass that is traced.

    For a mixer, it has no previous state: a single column runs as several do. Written by `index_put_`, which the compiler does
    in place; a `scatter_` would copy the whole cache.
    """

    def __init__(self, cache: "TracedCache", layout: Layout, tensors: Sequence[Tensor]):
        super().__init__(cache, None, len(layout.states))  # type: ignore[arg-type]
        if layout.keys:
            self.keys, self.values, *tensors = tensors
            self.is_initialized = True
        self.given: dict[tuple[str, int], tuple[StateLayout, list[Tensor]]] = {}
        for state in layout.states:
            self.given[state.kind, state.index] = state, [*tensors[: state.num_tensors]]
            tensors = tensors[state.num_tensors :]

    @property
    def steps(self) -> AtOnce | None:  # type: ignore[override]
        """The recurrence over the columns of the pass, if the layer has one."""
        if ("recurrent", 0) not in self.given:
            return None
        layout, (*given, new) = self.given["recurrent", 0]
        state = given[0] if layout.is_whole else self._before(layout, *given)
        return AtOnce(state, new, self.recurrence.is_filler, self.recurrence.ancestors)  # type: ignore[arg-type]

    @staticmethod
    def _before(layout: StateLayout, *given: Tensor) -> Tensor:
        """The state before the pass, which is noted for later."""
        *parts, before = given
        return before.copy_(layout.after(*parts))

    @property
    def paths(self) -> Tensor:  # type: ignore[override]
        """One file serves chains and trees."""
        layout, _ = self.given["conv", 0]
        return self.recurrence.paths(layout.shape[1])

    def begin_columns(self) -> None:
        """States come as inputs of the pass."""

    def finish_columns(self) -> None:
        """They are written already."""

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, *args, **kwargs) -> Tensor:
        """Channels are last in memory, so that inputs are read as vectors."""
        layout, (*given, new) = self.given["conv", state_idx]
        inputs = [self._before(layout, *given), new.copy_(conv_states.transpose(1, 2))]
        return torch.cat(inputs, 1).transpose(1, 2)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        cache = self.cache
        batch, heads = key_states.shape[:2]
        rows = torch.arange(batch, device=key_states.device)[:, None, None]
        index = (rows, torch.arange(heads, device=key_states.device)[None, :, None], cache.slots[:, None])  # type: ignore[index]
        for part, states in ((self.keys, key_states), (self.values, value_states)):
            part.index_put_(index, states)
        return self.keys[:, :, : cache.end], self.values[:, :, : cache.end]


class TracedCache(Cache):
    """A `RaggedCache` for `ragged_pass` and masks, over tensors that are inputs of the pass: those of each layer."""

    start = 0
    end: int
    slots: Tensor
    cross: "TracedCache | None" = None

    def __init__(self, layouts: Sequence[Layout], tensors: Sequence[Sequence[Tensor]]):
        num_own = [layout.num_tensors - len(layout.cross) for layout in layouts]
        own = [part[:num] for part, num in zip(tensors, num_own, strict=True)]
        layers = [TracedLayer(self, *layer) for layer in zip(layouts, own, strict=True)]
        self.recurrence = Recurrence([layer for layer in layers if layer.given])
        self.recurrence.has_filler = bool(self.recurrence.layers)  # a trace has to allow for filler
        super().__init__(layers=layers)  # type: ignore[arg-type]
        if any(layout.cross for layout in layouts):
            others = [part[num:] for part, num in zip(tensors, num_own, strict=True)]
            self.cross = TracedCache([Layout(keys=layout.cross) for layout in layouts], others)
            self.cross.start = 1  # it is full

    def has_previous_state(self, *args, **kwargs) -> bool:
        """As of `TracedLayer`: older mixers ask the last layer, which may have no states."""
        return False

    def first(self, window: int | None) -> int:
        """Windows look at all slots: what a mask hides changes no shape."""
        return 0


def layouts_of(model: PreTrainedModel, layers: AttentionLayers) -> list[Layout]:
    """Find what the layers of a language model cache, by a prompt of two tokens."""
    cache, cross = DynamicCache(config=layers.config), DynamicCache(config=layers.config)
    given: dict[str, Any] = {layers.cache_name: cache}
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    if layers.prefix:
        states = torch.zeros(1, 2, size_of_encoded(model), dtype=model.dtype, device=model.device)
        given = {layers.cache_name: EncoderDecoderCache(cache, cross)} | layers.encoded(2, states, torch.ones_like(ids))
    with torch.no_grad():
        model(use_cache=True, **{f"{layers.prefix}input_ids": ids}, **given)
    adds_products, layouts = not calls(model, "mamba_selective_scan"), list[Layout]()
    for layer, encoded_layer in itertools.zip_longest(cache.layers, cross.layers):
        held = held_by(layer) if isinstance(layer, LinearAttentionLayer) else []
        states = [
            StateLayout(kind, index, tuple(state.shape[1:]), state.dtype, kind == "recurrent" and adds_products)
            for kind, index, state in held
        ]
        layouts.append(Layout(_shapes_of_keys(layer), tuple(states), _shapes_of_keys(encoded_layer)))
    # Older transformers do not list layers that read the keys of others.
    return layouts + [Layout()] * (layers.config.num_hidden_layers - len(layouts))


def _shapes_of_keys(layer: Any) -> tuple[tuple[int, int], ...]:
    keys = [getattr(layer, name, None) for name in ("keys", "values")]
    return tuple((part.shape[1], part.shape[3]) for part in keys if part is not None)


def size_of_encoded(model: PreTrainedModel) -> int:
    """The width of the encoder's states."""
    return model.get_encoder().config.get_text_config().hidden_size


def layouts_of_head(layers: AttentionLayers) -> list[Layout]:
    """Return what the layers of a draft head cache, which are all alike."""
    config = layers.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return [Layout(((heads, width),) * 2)] * config.num_hidden_layers


def by_layer(layouts: Sequence[Layout], tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Split the last of `tensors` by the layers that cache them."""
    ends = [*itertools.accumulate((layout.num_tensors for layout in layouts), initial=0)]
    first = len(tensors) - ends[-1]
    return [tensors[first + begin : first + end] for begin, end in itertools.pairwise(ends)]
