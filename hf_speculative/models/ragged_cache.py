"""The ragged cache: preallocated keys and values in which each row has its own length.

Token t of a row lives in slot t, whatever its padding. A pass writes its entries to each row's own slots; rolling back
is a smaller length, without a copy. Rows that leave free their lanes, which others may take.
"""

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, CacheLayerMixin, EncoderDecoderCache

from ..hf_compat import LinearAttentionLayer
from ..types import uploaded
from .recurrent_cache import Recurrence, RecurrentLayer
from .written import StateLayout

#: slots that are allocated ahead of what a pass needs, if the request may use them
MAX_AHEAD = 1024


def fed_slots(starts: list[int], ends: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The columns of a pass in which row b is fed its tokens from `starts[b]` to `ends[b]`.

    Returns:
        `(batch, widest)` int64 slots, rows ending in the last column, and `(batch, widest)` bool, those that are filler.
    """
    first, last = uploaded([starts, ends], device)
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    slots = last[:, None] + torch.arange(-width, 0, device=device)
    return slots, slots < first[:, None]


def fed_places(first: Tensor, seen: Tensor, bounds: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Positions and slots, each `(batch, width)`, of a pass's columns; arguments as of `ragged_pass`."""
    places = first[:, None] + torch.arange(width, device=first.device)
    is_filler = places < seen[:, None]
    return places.masked_fill(is_filler, 0), torch.where(is_filler, bounds[:, :1], places)


def in_rows(slots: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """An index of `slots (batch, n)` in their rows, for tensors `(batch, slots, ...)` on a `device`.

    Several times faster than `gather` and `scatter_` on a CPU, where the latter takes time for all slots in half precision.
    """
    return torch.arange(len(slots), device=device)[:, None], slots.to(device)


def for_model(cache: Any) -> Cache:
    """A `RaggedCache`, or a `TracedCache`, as a model takes it: with what it keeps of an encoder's output, if anything."""
    return cache if cache.cross is None else EncoderDecoderCache(cache, cache.cross)


@dataclass(frozen=True)
class Layout:
    """The tensors in which a compiled pass finds what a layer caches.

    Attributes:
        keys: heads and width of keys and of values, which come first, each `(batch, heads, capacity, width)`.
        states: those of each recurrent state.
        cross: as `keys`, of an encoder's output, which come last and are read only.
    """

    keys: tuple[tuple[int, int], ...] = ()
    states: tuple[StateLayout, ...] = ()
    cross: tuple[tuple[int, int], ...] = ()

    @property
    def num_tensors(self) -> int:
        return len(self.keys) + sum(state.num_tensors for state in self.states) + len(self.cross)


class RaggedLayer(CacheLayerMixin):
    """Keys and values `(batch, heads, capacity, dim)` of one layer; the cache says where the next entries go."""

    is_croppable = True

    def __init__(self, cache: "RaggedCache", sliding_window: int | None = None):
        super().__init__()
        self._cache = weakref.ref(cache)  # which holds it: else both stay until the garbage collector comes
        self.is_sliding = sliding_window is not None
        self.sliding_window = sliding_window

    @property
    def cache(self) -> "RaggedCache":
        return self._cache()  # type: ignore[return-value]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        capacity, both = self.cache.capacity, (key_states, value_states)
        self.keys, self.values = (like.new_zeros(*like.shape[:2], capacity, like.shape[3]) for like in both)
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
            index = cache.index(key_states.device)
            keys.transpose(1, 2).index_put_(index, key_states.transpose(1, 2))
            values.transpose(1, 2).index_put_(index, value_states.transpose(1, 2))
        if cache.is_prompt:
            return key_states, value_states
        visible = slice(cache.first(self.sliding_window), cache.end)
        return keys[:, :, visible], values[:, :, visible]

    def grow(self) -> None:
        """Make room for as many slots as the cache now has."""
        if self.is_initialized:
            more = (0, 0, 0, self.cache.capacity - self.keys.shape[2])
            self.keys, self.values = functional.pad(self.keys, more), functional.pad(self.values, more)

    def filled(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows still running; those that left are behind them, the last ones first."""
        num_rows = self.cache.num_rows
        if num_rows == self.keys.shape[0]:
            return self.keys, self.values
        return self.keys[:num_rows], self.values[:num_rows]

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
            leaving = sorted({*range(self.cache.num_rows)} - {*indices})
            moved = [(lane, row) for lane, row in enumerate([*indices, *leaving]) if lane != row]
            if moved:
                goal, source = uploaded(moved, self.keys.device).T
                for part in (self.keys, self.values):  # whole rows: faster than indexing
                    part.index_copy_(0, goal, part.index_select(0, source))
        else:
            index = uploaded(indices, self.keys.device)
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)
            self.cache.captured.clear()

    def take(self, other: "RaggedLayer", rows: list[int], lanes: list[int], end: int) -> None:
        """Slots `[0, end)` of row `rows[i]` of `other` become those of row `lanes[i]`."""
        if other.is_initialized:
            keys, values = (part[uploaded(rows, part.device), :, :end] for part in other.filled())
            if not self.is_initialized:
                nothing = (self.cache.num_rows, -1, -1, -1)
                self.lazy_initialization(keys[:1].expand(nothing), values[:1].expand(nothing))
            index = uploaded(lanes, self.keys.device)
            self.keys[index, :, :end], self.values[index, :, :end] = keys, values
            # No mask hides an inf that an earlier row left, see `begin`.
            for part in (self.keys, self.values):  # by index_fill_, since assigning a number reads from a GPU
                part[:, :, end:].index_fill_(0, index, 0)


class RaggedRecurrentLayer(RaggedLayer, RecurrentLayer):
    """A layer that attends and has recurrent states beside."""

    def __init__(self, cache: "RaggedCache", sliding_window: int | None, number_of_states: int):
        RaggedLayer.__init__(self, cache, sliding_window)
        LinearAttentionLayer.__init__(self, number_of_states)


class RaggedCache(Cache):
    """The layers of one model, and where the pass under way writes.

    Attributes:
        start: the first slot a row of equal lengths writes to.
        end: slots `[0, end)` are what attention sees, `[first(window), end)` what it sees through a window.
        lowest: the first slot that any row writes to.
        slots: `(batch, q)` slot of each column fed, or `None` where all rows write `[start, end)`.
        is_prompt: the cache is empty before this pass, which sees its own columns, left-padded as they are fed.
        capacity: slots allocated; the last one is the spare.
        num_rows: rows running, the first ones of those allocated; 0 between calls.
        used: slots that this call has written to, from 0 on.
        captured: passes over this cache by kind, see `Replays`; they hold addresses of keys and values.
        made_for: the state of the model that it was taken for, see `pool`.
        recurrence: what is known of recurrent states, if layers have any.
        recorded: hidden states beside the keys, for a call that asks for them; its values have no width.
        recordings: those of this call and of earlier ones, by the states that they are of.
        cross: keys and values of an encoder's output, if layers attend to one.
        buffers: those that captured passes read.

    Args:
        windows: of each layer, within which it attends.
        num_states: recurrent states of each layer; empty: none.
        attends: which layers attend; empty: all.
    """

    made_for: tuple = ()
    recorded: RaggedLayer | None = None
    cross: Cache | None = None

    def __init__(self, windows: list[int | None], num_states: Sequence[int] = (), attends: Sequence[bool] = ()):
        self.captured: dict[tuple, Callable[..., Any]] = {}
        self.recordings: dict[tuple[int, ...], RaggedLayer] = {}
        self.buffers: dict[Hashable, Tensor] = {}
        self.start, self.end, self.lowest, self.capacity = 0, 0, 0, 0
        self.num_rows, self.used = 0, 0
        self.slots: Tensor | None = None
        self.is_prompt = False
        self._index: tuple[Tensor | None, tuple[Tensor, Tensor]] | None = None
        layers = [self._new_layer(*kind) for kind in itertools.zip_longest(windows, num_states, attends)]
        self.recurrence = Recurrence([layer for layer in layers if isinstance(layer, RecurrentLayer)])
        super().__init__(layers=layers)

    def _new_layer(self, window: int | None, num_states: int | None, attends: bool) -> RaggedLayer | RecurrentLayer:
        if not num_states:
            return RaggedLayer(self, window)
        return RaggedRecurrentLayer(self, window, num_states) if attends else RecurrentLayer(num_states)

    def index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of `slots`, for a layer on this device; made once a pass and device."""
        assert self.slots is not None
        if self._index is None or self._index[0] is not self.slots or self._index[1][0].device != device:
            self._index = self.slots, in_rows(self.slots, device)
        return self._index[1]

    @property
    def allocated(self) -> list[RaggedLayer]:
        """Layers with keys and values of their own, from the first pass on; others may read theirs."""
        return [layer for layer in self.attending if layer.is_initialized]

    @property
    def attending(self) -> list[RaggedLayer]:
        """Layers with slots, `recorded` behind the model's."""
        return [layer for layer in (*self.layers, self.recorded) if isinstance(layer, RaggedLayer)]

    def tensors(
        self, num_rows: int, layouts: Sequence[Layout], dtype: torch.dtype, device: torch.device, width: int = 0
    ) -> list[Tensor]:
        """List what a compiled pass reads and writes, for the rows running: the tensors of each layer's `Layout`.

        Args:
            num_rows, layouts, dtype, device: of what is allocated if no pass has been run.
            width: of the pass, from whose states the cache goes on.
        """
        pairs = list(zip(self.layers, layouts, strict=True))
        states = self.recurrence.compiled([own.states for layer, own in pairs if isinstance(layer, RecurrentLayer)], width)
        tensors: list[Tensor] = []
        for index, (layer, layout) in enumerate(pairs):
            if layout.keys:
                if not layer.is_initialized:
                    sizes = ((num_rows, heads, 0, width) for heads, width in layout.keys)
                    layer.lazy_initialization(*(torch.empty(size, dtype=dtype, device=device) for size in sizes))
                tensors += layer.filled()
            if isinstance(layer, RecurrentLayer):
                tensors += states[layer.place]
            if layout.cross:
                encoded = self.cross.layers[index]  # type: ignore[union-attr]
                tensors += [encoded.keys, encoded.values]
        return tensors

    def first(self, window: int | None) -> int:
        """The first slot that a query of this pass sees through a `window`: what lies before would only cost time."""
        return 0 if window is None else max(0, self.lowest + 1 - window)

    def reserve(self, num_rows: int, end: int, limit: int) -> None:
        """Reserve slots `[0, end)` of `num_rows` rows, and the spare slot.

        As much as the request can use at most, `limit`, where that is not far; beyond, capacity doubles, so that growing costs
        O(1) a token.
        """
        self.num_rows, self.used = num_rows, max(self.used, end)
        if end + 1 > self.capacity:
            self.capacity = max(end + 1, min(max(2 * end, end + MAX_AHEAD), limit + 1))
            self._forget_recordings()
            self.captured.clear()
            for layer in self.attending:
                layer.grow()

    def begin(self, num_rows: int, limit: int) -> None:
        """A call begins: what is allocated stays if it is about what the request needs, emptied; else it goes."""
        if self.num_rows:
            return
        allocated = self.allocated
        most_rows = min((len(layer.keys) for layer in allocated), default=0)
        if num_rows <= most_rows and self.capacity <= 4 * max(limit, MAX_AHEAD):
            for part in (part for layer in allocated for part in (layer.keys, layer.values)):
                # No mask hides an inf: its weight is 0, and 0 times inf is not a number.
                part[:, :, : self.used] = part[:, :, -1:] = 0
        else:
            self.capacity = 0
            self._forget_recordings()
            self.buffers.clear()
            for layer in allocated:
                layer.is_initialized, layer.keys, layer.values = False, None, None
        self.used = 0
        self.recurrence.clear()

    def in_buffer(self, key: Hashable, part: Tensor) -> Tensor:
        """A copy of `part` at the address of earlier ones with this key, where captured passes find it."""
        buffer = self.buffers.get(key)
        if buffer is None or buffer.numel() < part.numel():
            buffer = self.buffers[key] = part.new_empty(part.numel())
            self.captured.clear()
        return buffer[: part.numel()].view(part.shape).copy_(part)

    def _forget_recordings(self) -> None:
        """Of earlier calls, which do not grow with the layers."""
        self.recordings = {states: layer for states, layer in self.recordings.items() if layer is self.recorded}

    def move(self, source: Tensor, goal: Tensor) -> None:
        """What is in slots `source (batch, n)` goes to slots `goal (batch, n)`."""
        device = None
        for layer in self.allocated:
            if layer.keys.device != device:
                device = layer.keys.device
                read, write = in_rows(source, device), in_rows(goal, device)
            for part in (part.transpose(1, 2) for part in layer.filled()):
                part.index_put_(write, part[read])

    def take(self, other: "RaggedCache", rows: list[int], lanes: list[int], end: int) -> None:
        """Slots `[0, end)` of row `rows[i]` of `other` become those of row `lanes[i]`."""
        for layer, given in zip(self.attending, other.attending, strict=True):
            layer.take(given, rows, lanes, end)

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        for layer in self.attending:
            layer.select(indices)
        self.recurrence.select(indices)
        self.num_rows = len(indices)
