"""The ragged cache: preallocated keys and values in which each row has its own length.

Token t of a row lives in slot t, whatever the row's padding. A pass scatters its entries into each row's own slots under
an explicit mask, slot <= position; rolling back is a smaller length, without a copy. Where a row feeds less than the widest
one, the filler columns go to a spare slot that no mask shows. Rows of equal length need none of this: they are written as a
slice, and the model builds the masks that it builds in plain `generate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ..types import Batch
from . import pool
from .attention import with_folded_attention
from .cached_model import CachedModel, device_of
from .masks import AttentionLayers

#: slots that are allocated ahead of what a pass needs, if the request may use them
MAX_AHEAD = 1024


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
        self.cache.captured.clear()

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self.cache
        keys, values = self.filled()
        if cache.slots is None:
            keys[:, :, cache.start : cache.end] = key_states
            values[:, :, cache.start : cache.end] = value_states
        else:
            slots = cache.slots.to(key_states.device)[:, None, :, None]  # layers may lie on several devices
            keys.scatter_(2, slots.expand_as(key_states), key_states)
            values.scatter_(2, slots.expand_as(value_states), value_states)
        visible = slice(cache.first(self.sliding_window), cache.end)
        return keys[:, :, visible], values[:, :, visible]

    def grow(self) -> None:
        """Make room for as many slots as the cache now has."""
        if self.is_initialized:
            more = (0, 0, 0, self.cache.capacity - self.keys.shape[2])
            self.keys, self.values = functional.pad(self.keys, more), functional.pad(self.values, more)

    def filled(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows still running; rows that left keep their lanes behind them."""
        return self.keys[: self.cache.num_rows], self.values[: self.cache.num_rows]

    # The three below tell a model how to build its own mask; only used while all rows are equally long.
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self.cache.first(self.sliding_window)
        return self.cache.start + query_length - first, first

    def get_seq_length(self) -> int:
        return self.cache.start

    def get_max_length(self) -> int:
        return -1

    def select(self, indices: list[int]) -> None:
        if not self.is_initialized:
            return
        if indices == sorted(set(indices)):  # rows only move up: in place, and only those that move
            for lane, row in enumerate(indices):
                if lane != row:
                    self.keys[lane] = self.keys[row]
                    self.values[lane] = self.values[row]
        else:
            index = torch.tensor(indices, device=self.keys.device)
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)
            self.cache.captured.clear()


class RaggedCache(Cache):
    """The layers of one model, and where the pass under way writes.

    Attributes:
        start: the first slot a row of equal lengths writes to.
        end: slots `[0, end)` are what attention sees, `[first(window), end)` what it sees through a window.
        lowest: the first slot that any row writes to.
        slots: `(batch, q)` slot of each column fed, or `None` where all rows write `[start, end)`.
        capacity: slots allocated; the last one is the spare.
        num_rows: rows running, the first ones of those allocated; 0 between calls.
        used: slots that this call has written to, from 0 on.
        captured: passes over this cache by kind, see `StaticModel`; they hold addresses of keys and values.
    """

    def __init__(self, windows: list[int | None]):
        self.captured: dict[tuple, Callable[..., Any]] = {}
        self.start, self.end, self.lowest, self.capacity = 0, 0, 0, 0
        self.num_rows, self.used = 0, 0
        self.slots: Tensor | None = None
        super().__init__(layers=[RaggedLayer(self, window) for window in windows])

    def first(self, window: int | None) -> int:
        """The first slot that a query of this pass sees through a `window`: what lies before would only cost time."""
        return 0 if window is None else max(0, self.lowest + 1 - window)

    def reserve(self, num_rows: int, end: int, limit: int) -> None:
        """Room for slots `[0, end)` of so many rows and for the spare one.

        As much as the request can use at most, `limit`, where that is not far; beyond, capacity doubles, so that growing costs
        O(1) a token.
        """
        self.num_rows, self.used = num_rows, max(self.used, end)
        if end + 1 > self.capacity:
            self.capacity = max(end + 1, min(max(2 * end, end + MAX_AHEAD), limit + 1))
            self.captured.clear()
            for layer in self.layers:
                layer.grow()

    def begin(self, num_rows: int, limit: int) -> None:
        """A call begins: what is allocated stays if it is about what the request needs, emptied; else it goes."""
        if self.num_rows:
            return
        allocated = [layer for layer in self.layers if layer.is_initialized]
        if allocated and num_rows <= allocated[0].keys.shape[0] and self.capacity <= 4 * max(limit, MAX_AHEAD):
            for part in (part for layer in allocated for part in (layer.keys, layer.values)):
                # No mask hides an inf: its weight is 0, and 0 times inf is not a number.
                part[:, :, : self.used] = part[:, :, -1:] = 0
        else:
            self.capacity = 0
            for layer in allocated:
                layer.is_initialized, layer.keys, layer.values = False, None, None
        self.used = 0

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        for layer in self.layers:
            layer.select(indices)
        self.num_rows = len(indices)


class RaggedModel(CachedModel):
    """A decoder-only attention model with a ragged cache.

    Args:
        clamp_ids: read ids past the embedding table as its last one, instead of failing.
    """

    def __init__(self, model: PreTrainedModel, clamp_ids: bool = False):
        self.original, self.model = model, with_folded_attention(model)
        self.last_id = model.get_input_embeddings().weight.shape[0] - 1 if clamp_ids else None
        self.layers = AttentionLayers(model)
        self.num_forwards = 0
        self.cache = RaggedCache(self.layers.windows)
        self.reset()
        self.device = device_of(model)
        self.accepts_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    def reset(self) -> None:
        if self.cache.num_rows or not self.cache.capacity:
            self.cache = pool.take(self.original) or RaggedCache(self.layers.windows)
        self.host_seen: list[int] = []
        self.seen: Tensor | None = None

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        ends, width = self._begin(batch, ahead)
        assert self.seen is not None
        end = max(ends)
        self.cache.reserve(len(ends), end, limit=batch.max_length + ahead)
        self.cache.start, self.cache.end, self.cache.lowest = end - width, end, min(self.host_seen)
        uniform = all(e == end for e in ends) and all(seen == end - width for seen in self.host_seen)
        input_ids = self._input_ids(batch, ahead, width)
        if uniform:
            self.cache.slots = None
            position_ids = torch.arange(end - width, end, device=self.device).expand(len(ends), -1)
            # An empty cache or a single query: the model's own masks, and with them plain decoding's kernels.
            own_masks = width == 1 or end == width
            attention_mask = None if own_masks else self.layers.masks(position_ids[:1], self.cache, self.model.dtype)
        else:
            first = (batch.lengths - batch.padding + (ahead - width)).to(self.device)
            slots = first[:, None] + torch.arange(width, device=self.device)
            is_filler = slots < self.seen.to(self.device)[:, None]
            self.cache.slots = slots.masked_fill(is_filler, self.cache.capacity - 1)
            positions = slots.masked_fill(is_filler, 0)
            attention_mask = self.layers.masks(positions, self.cache, self.model.dtype)
            # A row near the maximum length may be fed beyond it, because others draft further: nothing reads that.
            position_ids = positions.clamp(max=batch.max_position)

        keep = {"logits_to_keep": num_last} if self.accepts_logits_to_keep else {}
        outputs = self.run(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
            **keep,
        )
        self._finish(batch, ahead, ends)
        return outputs.logits[:, -num_last:].to(batch.tokens.device)

    def _begin(self, batch: Batch, ahead: int) -> tuple[list[int], int]:
        """Each row's tokens once the pass is over, and the columns that the widest row feeds."""
        if self.seen is None:
            self.cache.begin(len(batch.rows), limit=batch.max_length + ahead)
            self.host_seen = [0] * len(batch.rows)
            self.seen = torch.zeros_like(batch.lengths)
        ends = [n - pad + ahead for n, pad in zip(batch.host_lengths, batch.host_padding, strict=True)]
        return ends, max(end - seen for end, seen in zip(ends, self.host_seen, strict=True))

    def _input_ids(self, batch: Batch, ahead: int, width: int) -> Tensor:
        """`(batch, width)` ids of the columns before each row's end; what a shorter row has before its first is filler."""
        if max(batch.host_lengths) == min(batch.host_lengths):
            last = batch.host_lengths[0] + ahead
            input_ids = batch.tokens[:, last - width : last]
        else:
            columns = (batch.lengths + ahead - width)[:, None] + torch.arange(width, device=batch.tokens.device)
            input_ids = batch.tokens.gather(1, columns.clamp(min=0))
        return self.readable(input_ids).to(self.device)

    def readable(self, ids: Tensor) -> Tensor:
        """Ids that the model has embeddings for."""
        return ids if self.last_id is None else ids.clamp(max=self.last_id)

    def _finish(self, batch: Batch, ahead: int, ends: list[int]) -> None:
        self.num_forwards += 1
        self.host_seen = ends
        self.seen = batch.lengths - batch.padding + ahead

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
        self.host_seen = [self.host_seen[i] for i in indices]
        self.seen = self.seen[torch.tensor(indices, dtype=torch.long, device=self.seen.device)]
        self.cache.select(indices)

    def release(self) -> None:
        self.cache.num_rows = 0
        pool.give_back(self.original, self.cache)
        self.cache = RaggedCache(self.layers.windows)

    def load(self, cache, batch: Batch) -> None:
        length = cache.get_seq_length()
        self.host_seen = [max(0, length - pad) for pad in batch.host_padding]
        self.seen = torch.tensor(self.host_seen, device=batch.tokens.device)
        self.cache.reserve(len(batch.rows), length, limit=length)
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
                kept = [part[:, :, :num_columns].clone() for part in layer.filled()]
                stored.update(*(functional.pad(part, (0, 0, padding[0], 0)) for part in kept), index)
        if given is None:
            return stored
        given.layers = stored.layers
        return given
