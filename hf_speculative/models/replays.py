"""Run passes over a cache; those that come often are captured, and replayed without Python.

`Capture` is small, so that the code around it can be tested without a GPU: tests/models/test_static.py has a capture that
replays recorded operations on the CPU.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from . import pool
from .cached_model import device_of
from .ragged_cache import RaggedCache

#: A function of tensors that is replayed. It takes inputs of the same shapes, and returns tensors that the next replay
#: overwrites. All else that the function reads or writes has to stay at its address: weights, keys and values.
Replayed = Callable[..., Any]
#: Make a replay of a function and its first inputs, beside another one of the same cache, or `None` for the first.
Capture = Callable[[Callable[..., Any], tuple[Tensor, ...], Replayed | None], Replayed]

#: how torch's warning of a wait begins
WAITS = "called a synchronizing CUDA operation"
#: devices where a capture failed: graphs that draw hold a generator that is no more, and memory may be lost
failed_on: set[torch.device] = set()


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether outputs of a function are the same bits."""
    return all(map(torch.equal, one, other))


def tensors_of(output: Any) -> list[Tensor]:
    """A copy of what a function gave: a tensor, or a tuple of them and `None`."""
    parts = [output] if isinstance(output, Tensor) else output
    return [part.clone() for part in parts if part is not None]


class CudaGraph:
    """A function captured as a CUDA graph, whose first replay is compared with the function.

    Args:
        device: where the function runs; torch captures on its current device.
        beside: its memory is used as well.

    Raises:
        RuntimeError: a function that waits for the device, or whose replay gives other bits.
    """

    def __init__(self, device: torch.device, function: Callable[..., Any], inputs: tuple[Tensor, ...], beside=None):
        self.buffers = tuple(tensor.clone() for tensor in inputs)
        # A pool ends with the last of its graphs, and torch refuses to capture into it again.
        self.pool = torch.cuda.graph_pool_handle() if beside is None else beside.pool
        with torch.cuda.device(device):
            # Lazy initialisation, as of cuBLAS, must not be captured. A repeated pass writes the same slots again.
            stream = _warm_up_stream(device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                before, first = torch.cuda.get_rng_state(), tensors_of(function(*self.buffers))
                draws = not torch.equal(before, torch.cuda.get_rng_state())
                with _refusing_waits():
                    second = tensors_of(function(*self.buffers))
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile; they must not draw on this device.
            capture = torch.cuda.graph(self.graph, pool=self.pool, capture_error_mode="thread_local")
            with _undone_if_it_fails(device), capture:
                self.output = function(*self.buffers)
            self.graph.replay()
            # Passes that draw, or add in any order, tell nothing.
            if not draws and are_equal(first, second) and not are_equal(tensors_of(self.output), second):
                raise RuntimeError("a replay gives other bits than the pass that was captured; please report this")

    def __call__(self, *tensors: Tensor) -> Any:
        for buffer, tensor in zip(self.buffers, tensors, strict=True):
            buffer.copy_(tensor)
        self.graph.replay()
        return self.output


@functools.cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream(device)


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Refuse what waits for the device, which must not be captured, before it is."""
    mode, show = torch.cuda.get_sync_debug_mode(), warnings.showwarning
    thread, places = threading.get_ident(), list[str]()

    def note(message, category, filename, lineno, file=None, line=None) -> None:
        """Called by the thread that warns, which may be another one."""
        if str(message).startswith(WAITS) and threading.get_ident() == thread:
            places.append(f"{filename}, line {lineno}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            warnings.showwarning = show  # a Python whose filters belong to a context leaves it
    if places:
        raise RuntimeError(f"a pass waits for the device, in {places[0]}")


@contextmanager
def _undone_if_it_fails(device: torch.device) -> Iterator[None]:
    """Undo a capture that failed: torch leaves its stream current, and its generator refuses to draw outside of it."""
    generator, stream = torch.cuda.default_generators[torch.cuda.current_device()], torch.cuda.current_stream()
    try:
        yield
    except RuntimeError:
        failed_on.add(device)
        torch.cuda.set_stream(stream)
        state = torch.Generator(generator.device)
        state.set_state(generator.get_state())
        generator.graphsafe_set_state(state)
        raise


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
