"""Run passes over a cache; those that come often are captured, and replayed."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from . import pool
from .cached_model import device_of
from .capture import Capture, failed_on
from .ragged_cache import RaggedCache

#: the fewest slots attention looks at, and the most steps of the ladder from a power of two to the next
MIN_SLOTS, STEPS = 256, 4
#: how often a kind of pass runs before it is captured, which takes about as long
NUM_EAGER = 3
#: captured passes of a cache, each of which keeps its output
MOST_CAPTURED = 64


def ladder(num_slots: int) -> int:
    """The slots that a pass over `num_slots` looks at: at most a quarter more, from few different numbers."""
    step = max(MIN_SLOTS, 2 ** ((num_slots - 1).bit_length() - 1) // STEPS)
    return -(-num_slots // step) * step


def rounded_up(number: int) -> int:
    """Columns or nodes of which a pass is made where there are `number`: up to half as many more, of few different numbers."""
    step = max(1, 2 ** (number - 1).bit_length() // STEPS)
    return -(-number // step) * step


def padded(nodes: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `Nodes`, with further nodes that nothing follows, of few different numbers."""
    root, depths, ancestors = nodes
    more = rounded_up(depths.shape[1]) - depths.shape[1]
    return root, functional.pad(depths, (0, more)), functional.pad(ancestors, (0, more, 0, more))


class Replays:
    """The passes of `model` in one call.

    Args:
        capture: how to capture one, see `Capture`; `None`: all are called as they are.
    """

    def __init__(self, model: PreTrainedModel, capture: Capture | None):
        self.model, self.device, self.kept = model, device_of(model), pool.kept(model)
        self.capture = None if self.kept.cannot_capture else capture

    def __call__(self, cache: RaggedCache, function, inputs: tuple[Tensor, ...], kind: tuple) -> Any:
        """Call `function`, or replay it: what it reads beside `inputs` and `cache` must be in `kind`."""
        recurrence, captured, states = cache.recurrence, cache.captured, None
        kind += (recurrence.has_filler, *(tuple(tensor.shape) for tensor in inputs))
        if self.capture is not None and self.device in failed_on:
            captured.clear()
            self.capture = None
        if recurrence.layers and self.capture is not None:
            states, are_moved = recurrence.in_buffers()
            if are_moved:
                captured.clear()
            function = recurrence.over(states, function)
        if self.capture is not None and kind not in captured:
            self.kept.num_unreplayed += 1
            self.kept.met[kind] += 1
            if self.kept.met[kind] > NUM_EAGER:
                self._make(self.capture, cache, function, inputs, kind)
        if kind in captured and self.capture is not None:
            function = captured[kind] = captured.pop(kind)  # those replayed last are behind
        output = function(*inputs)
        if states is not None:
            recurrence.keep(states)
        return output

    def _make(self, capture: Capture, cache: RaggedCache, function, inputs: tuple[Tensor, ...], kind: tuple) -> None:
        """Capture `function`, of which only the replay is kept: it belongs to this call, and holds its model."""
        captured = cache.captured
        if len(captured) >= MOST_CAPTURED:
            del captured[next(iter(captured))]
        # Capturing draws, and the replay draws again: a seed has to give the same tokens with either.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            try:
                captured[kind] = capture(function, inputs, next(iter(captured.values()), None))
            except RuntimeError as error:  # a model that waits for the device inside a pass: for routing, say
                captured.clear()
                self.capture, self.kept.cannot_capture = None, True
                name = type(self.model).__name__
                warnings.warn(f"passes of {name} cannot be captured and run eagerly: {error}", stacklevel=3)
