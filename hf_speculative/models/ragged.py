"""The ragged cache: preallocated keys and values in which each row has its own length.

Token t of a row lives in slot t, whatever the row's padding. A pass scatters its entries into each row's own slots under
an explicit mask, slot <= position; rolling back is a smaller length, without a copy. Where a row feeds less than the widest
one, the filler columns go to a spare slot that no mask shows. Rows of equal length need none of this: they are written as a
slice, and the model builds the masks that it builds in plain `generate`.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ..types import Batch
from .cached_model import CachedModel, device_of

MIN_CAPACITY = 256


class RaggedLayer(CacheLayerMixin):
    """Keys and values `(batch, heads, capacity, dim)` of one layer; the cache says where the next entries go."""

    is_croppable = True

    def __init__(self, cache: RaggedCache, sliding_window: int | None = None):
        super().__init__()
        self.cache = cache
        self.is_sliding = sliding_window is not None
        self.sliding_window = sliding_window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, _ = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.cache.capacity, key_states.shape[3])
        self.values = value_states.new_zeros(batch, value_states.shape[1], self.cache.capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._grow()
        cache = self.cache
        if cache.slots is None:
            self.keys[:, :, cache.start : cache.end] = key_states
            self.values[:, :, cache.start : cache.end] = value_states
        else:
            slots = cache.slots.to(key_states.device)[:, None, :, None]  # layers may lie on several devices
            self.keys.scatter_(2, slots.expand_as(key_states), key_states)
            self.values.scatter_(2, slots.expand_as(value_states), value_states)
        return self.keys[:, :, : cache.end], self.values[:, :, : cache.end]

    def _grow(self) -> None:
        if (missing := self.cache.capacity - self.keys.shape[2]) > 0:
            self.keys = functional.pad(self.keys, (0, 0, 0, missing))
            self.values = functional.pad(self.values, (0, 0, 0, missing))

    # The three below tell a model how to build its own mask; only used while all rows are equally long.
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.start + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.start

    def get_max_length(self) -> int:
        return -1

    def select(self, index: Tensor) -> None:
        if self.is_initialized:
            index = index.to(self.keys.device)
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)

    def take(self, other: RaggedLayer, index: Tensor, end: int) -> None:
        """Slots `[0, end)` of row i of `other` become those of row `index[i]`."""
        if self.is_initialized:
            self._grow()
            index = index.to(self.keys.device)
            self.keys[index, :, :end] = other.keys[:, :, :end]
            self.values[index, :, :end] = other.values[:, :, :end]


class RaggedCache(Cache):
    """The layers of one model, and where the pass under way writes.

    Attributes:
        start: the first slot a row of equal lengths writes to.
        end: slots `[0, end)` are what attention sees.
        slots: `(batch, q)` slot of each column fed, or `None` where all rows write `[start, end)`.
        capacity: slots allocated; the last one is the spare.
    """

    def __init__(self, windows: list[int | None]):
        self.start, self.end, self.capacity = 0, 0, 0
        self.slots: Tensor | None = None
        super().__init__(layers=[RaggedLayer(self, window) for window in windows])

    def reserve(self, end: int, limit: int) -> None:
        """Room for slots `[0, end)` and the spare one; capacity doubles, so that growing costs O(1) a token."""
        if end + 1 > self.capacity:
            self.capacity = max(end + 1, min(max(2 * end, MIN_CAPACITY), limit + 1))


class RaggedModel(CachedModel):
    """A decoder-only attention model with a ragged cache.

    Args:
        clamp_ids: read ids past the embedding table as its last one, instead of failing.
    """

    def __init__(self, model: PreTrainedModel, clamp_ids: bool = False):
        self.model = model
        self.last_id = model.get_input_embeddings().weight.shape[0] - 1 if clamp_ids else None
        self.layers = AttentionLayers(model)
        self.num_forwards = 0
        self.reset()
        self.device = device_of(model)
        self.accepts_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    def reset(self) -> None:
        self.cache = RaggedCache(self.layers.windows)
        self.host_seen: list[int] = []
        self.seen: Tensor | None = None

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        if self.seen is None:
            self.host_seen = [0] * len(batch.rows)
            self.seen = torch.zeros_like(batch.lengths)
        lengths = [n - pad for n, pad in zip(batch.host_lengths, batch.host_padding, strict=True)]
        ends = [length + ahead for length in lengths]
        width = max(end - seen for end, seen in zip(ends, self.host_seen, strict=True))
        end = max(ends)
        self.cache.reserve(end, limit=batch.max_length + ahead)
        self.cache.start, self.cache.end = end - width, end

        uniform = all(e == end for e in ends) and all(seen == end - width for seen in self.host_seen)
        if max(batch.host_lengths) == min(batch.host_lengths):
            last = batch.host_lengths[0] + ahead
            input_ids = batch.tokens[:, last - width : last]
        else:
            columns = (batch.lengths + ahead - width)[:, None] + torch.arange(width, device=batch.tokens.device)
            # Short rows reach back before their first column; what stands there is filler.
            input_ids = batch.tokens.gather(1, columns.clamp(min=0))
        if self.last_id is not None:
            input_ids = input_ids.clamp(max=self.last_id)
        if uniform:
            self.cache.slots = None
            position_ids = torch.arange(end - width, end, device=self.device).expand(len(ends), -1)
            # An empty cache or a single query: the model's own masks, and with them plain decoding's kernels.
            own_masks = width == 1 or end == width
            attention_mask = None if own_masks else self.layers.masks(position_ids[:1], end, self.model.dtype)
        else:
            first = (batch.lengths - batch.padding + (ahead - width)).to(self.device)
            slots = first[:, None] + torch.arange(width, device=self.device)
            is_filler = slots < self.seen.to(self.device)[:, None]
            self.cache.slots = slots.masked_fill(is_filler, self.cache.capacity - 1)
            positions = slots.masked_fill(is_filler, 0)
            attention_mask = self.layers.masks(positions, end, self.model.dtype)
            # A row near the maximum length may be fed beyond it, because others draft further: nothing reads that.
            position_ids = positions.clamp(max=batch.max_position)

        keep = {"logits_to_keep": num_last} if self.accepts_logits_to_keep else {}
        outputs = self.run(
            input_ids=input_ids.to(self.device),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
            **keep,
        )
        self.num_forwards += 1
        self.host_seen = ends
        self.seen = batch.lengths - batch.padding + ahead
        return outputs.logits[:, -num_last:].to(batch.tokens.device)

    def run(self, **inputs):
        """The model's own forward; a subclass may ask it for more."""
        return self.model(**inputs)

    def rollback(self, batch: Batch) -> None:
        if self.seen is None:
            return
        self.host_seen = [
            min(seen, n - pad - 1)
            for seen, n, pad in zip(self.host_seen, batch.host_lengths, batch.host_padding, strict=True)
        ]
        self.seen = torch.minimum(self.seen, batch.lengths - batch.padding - 1)

    def select(self, indices: list[int]) -> None:
        if not indices or self.seen is None:  # the last rows stay where they are, for `store`
            return
        index = torch.tensor(indices, dtype=torch.long, device=self.seen.device)
        self.host_seen = [self.host_seen[i] for i in indices]
        self.seen = self.seen[index]
        for layer in self.cache.layers:
            layer.select(index)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.seen is not None:  # else the first pass is still to come, and reads all rows
            super().admit(newcomers, lanes)

    def take(self, other, lanes: list[int]) -> None:
        index, end = torch.tensor(lanes), max(other.host_seen)
        self.cache.reserve(end, limit=other.cache.capacity)
        for layer, given in zip(self.cache.layers, other.cache.layers, strict=True):
            layer.take(given, index, end)
        self._set_seen(lanes, other.host_seen)

    def forget(self, lanes: list[int]) -> None:
        self._set_seen(lanes, [0] * len(lanes))

    def _set_seen(self, lanes: list[int], values: list[int]) -> None:
        if self.seen is None:
            return
        for lane, seen in zip(lanes, values, strict=True):
            self.host_seen[lane] = seen
        self.seen = torch.tensor(self.host_seen, device=self.seen.device)

    def load(self, cache, batch: Batch) -> None:
        length = cache.get_seq_length()
        self.host_seen = [max(0, length - pad) for pad in batch.host_padding]
        self.seen = torch.tensor(self.host_seen, device=batch.tokens.device)
        self.cache.reserve(length, limit=length)
        for layer, given in zip(self.cache.layers, cache.layers, strict=True):
            layer.lazy_initialization(given.keys, given.values)
            num_kept = given.keys.shape[2]  # a sliding layer holds its last window only
            for row, (pad, seen) in enumerate(zip(batch.host_padding, self.host_seen, strict=True)):
                first = length - num_kept - pad  # the slot of the first column kept; below 0 stands padding
                skip = min(max(0, -first), num_kept)
                layer.keys[row, :, seen - num_kept + skip : seen] = given.keys[row, :, skip:]
                layer.values[row, :, seen - num_kept + skip : seen] = given.values[row, :, skip:]

    def store(self, given, sequences: Tensor, padding: list[int]):
        if sequences.shape[0] > 1:  # rows that were done early have left
            return None
        stored = DynamicCache(config=self.layers.config)
        num_columns = sequences.shape[1] - 1 - padding[0]
        for index, layer in enumerate(self.cache.layers):
            if layer.is_initialized:
                kept = [part[:, :, :num_columns].clone() for part in (layer.keys, layer.values)]
                stored.update(*(functional.pad(part, (0, 0, padding[0], 0)) for part in kept), index)
        if given is None:
            return stored
        given.layers = stored.layers
        return given


class AttentionLayers:
    """What each layer of a model attends to, and the explicit masks that say so.

    Follows `transformers.masking_utils.create_masks_for_generate`: a dict of masks by layer type where the config lists
    `layer_types`, else one mask for all layers.
    """

    def __init__(self, model: PreTrainedModel):
        self.config = model.config.get_text_config(decoder=True)
        self.is_additive = self.config._attn_implementation == "eager"
        self.types: list[str] | None = getattr(self.config, "layer_types", None)
        self.window: int | None = getattr(self.config, "sliding_window", None)
        self.chunk: int | None = getattr(self.config, "attention_chunk_size", None)
        if self.types is None:
            self.windows = [self.window] * self.config.num_hidden_layers
        else:
            self.windows = [self.window if kind == "sliding_attention" else None for kind in self.types]

    def masks(self, positions: Tensor, end: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Masks for queries at `positions (batch, q)` over slots `[0, end)`: `(batch, 1, q, end)`."""
        if self.types is not None:
            return {kind: self._mask(kind, positions, end, dtype) for kind in set(self.types)}
        if self.window is not None:
            return self._mask("sliding_attention", positions, end, dtype)
        if self.chunk is not None:
            return self._mask("chunked_attention", positions, end, dtype)
        return self._mask("full_attention", positions, end, dtype)

    def _mask(self, kind: str, positions: Tensor, end: int, dtype: torch.dtype) -> Tensor:
        slots = torch.arange(end, device=positions.device)
        query = positions[:, None, :, None]
        visible = slots <= query
        if kind == "sliding_attention":
            visible &= slots > query - self.window
        elif kind == "chunked_attention":
            visible &= slots >= query // self.chunk * self.chunk
        return self.explicit(visible, dtype)

    def explicit(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """A boolean mask as the model's attention takes it."""
        if not self.is_additive:
            return visible
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
