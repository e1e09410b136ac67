"""CUDA graphs without a GPU, and the rules by which a capture goes wrong, often in silence.

A capture refuses whatever waits for the device, random numbers from a generator that it does not know, and work on another
device than the current one. A replay runs the operations alone, no Python: over the memory that they saw, which a graph does
not keep alive, and after spoiling what the other graphs of its pool have left there, for they share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if TYPE_CHECKING:
    from .fake_cuda import Devices


class Memory:
    """Where a tensor is, which is not kept alive."""

    def __init__(self, tensor: torch.Tensor):
        self.storage, self.dtype = StorageWeakRef(tensor.untyped_storage()), tensor.dtype
        self.layout = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self) -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError("a graph is replayed over memory that has been freed")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Graph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, devices: Devices):
        self.devices = devices
        self.calls: list[tuple] = []
        self.own: dict[int, torch.UntypedStorage] = {}
        self.generators = {generator._cdata for generator in devices.generators}
        self.is_spoiled = False  # since its last replay; what is written there without one stays

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.add(generator._cdata)

    def begin(self, devices: Devices, pool: object | None) -> None:
        self.pool: object = pool
        self.index = devices.current
        if self.pool in devices.pools and not any(graph.pool is self.pool for graph in devices.graphs):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: the pool went with its graphs")
        devices.pools.append(self.pool)
        devices.graphs.add(self)
        devices.capturing = self

    def check(self, operation, place: torch.device, generator: torch.Generator | None) -> None:
        """An operation that is about to be captured."""
        if place.index != self.index:
            raise RuntimeError(f"{operation} on {place} while cuda:{self.index} is captured")
        if generator is not None and generator._cdata not in self.generators:
            raise RuntimeError(f"{operation} draws from a generator that the graph does not know")

    def add(self, operation, args: tuple, kwargs: dict, result) -> None:
        given = {_storage(value) for value in tensors_in((args, kwargs))}
        for value in tensors_in(result):
            if _storage(value) not in given:
                self.own[_storage(value)] = value.untyped_storage()
        kept = lambda value: value if self._owns(value) else Memory(value)  # noqa: E731
        args, kwargs = with_tensors((args, kwargs), kept)
        self.calls.append((operation, args, kwargs, [kept(value) for value in tensors_in(result)]))

    def replay(self) -> None:
        if self.devices.capturing is not None:
            raise RuntimeError("a graph is replayed while another one is captured")
        for other in list(self.devices.graphs):
            if other is not self and other.pool is self.pool and not other.is_spoiled:
                other.spoil()
        self.is_spoiled = False
        self.devices.num_replays += 1
        with _disable_current_modes():
            for operation, args, kwargs, results in self.calls:
                args, kwargs = with_tensors((args, kwargs), _in_memory, Memory)
                _run_again(operation, args, kwargs, [_in_memory(result) for result in results])

    def spoil(self) -> None:
        self.is_spoiled = True
        with _disable_current_modes():
            for *_, results in self.calls:
                for value in results:
                    if isinstance(value, torch.Tensor) and self._owns(value):
                        value.fill_(torch.nan if value.is_floating_point() else 0)

    def _owns(self, tensor: torch.Tensor) -> bool:
        return _storage(tensor) in self.own


class Recorded:
    """A capture for the CPU that behaves as CUDA graphs do: the operations seen once are run again on the same memory.

    Nothing of the function's Python runs again, and an input that is no input of the function, or an address that moved, shows
    as a wrong result.
    """

    def __init__(self):
        self.num_captures = self.num_replays = 0

    def __call__(self, function, inputs, beside=None):
        self.num_captures += 1
        buffers = tuple(tensor.clone() for tensor in inputs)
        calls = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                result = operation(*args, **(kwargs or {}))
                calls.append((operation, args, kwargs or {}, result))
                return result

        with Recorder():
            output = function(*buffers)

        def replay(*tensors):
            self.num_replays += 1
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
            for operation, args, kwargs, kept in calls:
                _run_again(operation, args, kwargs, tensors_in(kept))
            return output

        return replay


def _run_again(operation, args: tuple, kwargs: dict, results: list[torch.Tensor]) -> None:
    """What the operation gives goes to where its `results` are."""
    for old, new in zip(results, tensors_in(operation(*args, **kwargs)), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def tensors_in(value: Any) -> list[torch.Tensor]:
    """As `torch.utils._pytree` finds them in what operations take and give, in a third of its time."""
    found: list[torch.Tensor] = []
    with_tensors(value, found.append)
    return found


def with_tensors(value: Any, change: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """`value` with what is of a `kind` in it changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: with_tensors(one, change, kind) for name, one in value.items()}
    if isinstance(value, list | tuple):
        changed = [with_tensors(one, change, kind) for one in value]
        return changed if isinstance(value, list) else tuple(changed)
    return value


def _in_memory(value):
    return value.tensor() if isinstance(value, Memory) else value
