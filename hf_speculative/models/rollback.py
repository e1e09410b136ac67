"""Roll transformers' own caches back to an earlier column, in two ways, one class each."""

import copy
from collections.abc import Collection

from torch import Tensor
from transformers import Cache, CacheLayerMixin, EncoderDecoderCache


class Crop:
    """Attention, and convolutions that record their past: the last columns are cut off.

    Attributes:
        cache: the one to go on with, after `take_back` too.
        column: where it was cut last.
    """

    max_replay = 0

    def __init__(self, cache, column: int):
        self.cache, self.column = cache, column
        cache.activate_past_recording()

    def mark(self, column: int) -> None:
        """Nothing to do: every column since the last cut is kept."""

    def take_back(self, covered: int, column: int) -> int | None:
        """Take the cache from `covered` columns to at most `column`; returns how many are left, `None` if it cannot."""
        layers = getattr(self.cache, "self_attention_cache", self.cache).layers
        if column < self.column and any(hasattr(layer, "record_past") for layer in layers):
            return None
        self.cache.crop(column - covered)
        self.column = column
        return column

    def finish(self):
        """The cache as plain `generate` leaves it: nothing beyond a window, nothing recorded."""
        self.cache.crop(0)
        for layer in getattr(self.cache, "self_attention_cache", self.cache).layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False
        return self.cache


class Snapshot:
    """Anything with a state that runs on: it is put back as it was, and what was kept since is fed again.

    Attributes:
        cache: the one to go on with, after `take_back` too.
        column: where the snapshot was taken.
        max_replay: how many kept tokens the next pass may feed again, before a pass of their own moves the snapshot on.
    """

    max_replay = 8

    def __init__(self, cache, column: int):
        self.cache = cache
        self.mark(column)

    def mark(self, column: int) -> None:
        self.column, self.state = column, copy_of(self.cache)

    def take_back(self, covered: int, column: int) -> int | None:
        if column >= covered:
            return covered
        if column < self.column:
            return None
        self.cache = copy_of(self.state)
        return self.column

    def finish(self):
        return self.cache


def copy_of(cache):
    """An independent copy; keys and values are shared until one of the two grows."""
    if cache is None or not isinstance(cache, Cache | EncoderDecoderCache):
        return copy.deepcopy(cache)
    new = copy.copy(cache)
    for name, value in vars(cache).items():
        if name == "layers":
            new.layers = [copy.copy(layer) for layer in value]
            for layer in new.layers:
                # Those grow by concatenation, which makes new tensors; recurrent states are written in place.
                states = {name: state for name, state in vars(layer).items() if name not in ("keys", "values")}
                vars(layer).update(_copied(states))
        elif isinstance(value, Cache):
            setattr(new, name, copy_of(value))
        elif isinstance(value, dict):
            setattr(new, name, dict(value))
    return new


def rewinder(cache, column: int, image_layers: Collection[int] = ()) -> Crop | Snapshot:
    """The way that fits `cache`, which holds `column` columns; `image_layers` of it hold an image, which must not be cut."""
    if image_layers or not getattr(cache, "is_croppable", False):
        return Snapshot(cache, column)
    layers = getattr(cache, "self_attention_cache", cache).layers
    # Those that read the keys of others are no `CacheLayerMixin`, and those of another length hold something else than text.
    lengths = {one.get_seq_length() for one in layers if isinstance(one, CacheLayerMixin) and one.is_initialized}
    return Crop(cache, column) if len(lengths) <= 1 else Snapshot(cache, column)


def _copied(value):
    """Tensors in dictionaries and the dictionaries themselves; `deepcopy` takes thirty times as long."""
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, list) else value
