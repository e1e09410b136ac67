"""CUDA devices without a GPU: tensors that say they are on "cuda", compute on the CPU, and keep CUDA's rules.

What only a GPU would show is an error here, or is counted. Tensors of different devices do not mix, nor do generators. What
makes the host wait for the device is a `Wait`: reading data, sizes that depend on it, uploads that are not `non_blocking`. What
is read without waiting is not there before the next wait. Graphs have rules of their own, see `fake_graphs`.

Kernels are the CPU's, so that this says nothing about rounding or speed.
"""

import contextlib
import linecache
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple
from unittest import mock
from weakref import WeakSet

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from .fake_graphs import Graph, tensors_in, with_tensors

PACKAGE = f"{Path(__file__).parents[2] / 'hf_speculative'}/"
NUM_DEVICES = 2
COPIES = ("_to_copy", "copy_")
INDEXING = ("index", "index_put", "index_put_")
#: these take a number from the host, as pointwise operations do
TAKES_SCALARS = ("where", "masked_fill", "masked_fill_", "fill_")
#: sizes or branches that depend on data; indexing by a mask is one more
READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave", "_unique2", "unique_dim")


class OnDevice(torch.Tensor):
    """A tensor on a device that is not there: its numbers are in `inner`, on the CPU.

    To torch's C++ it is on "meta", as a FakeTensor is, for a build without CUDA has no guard for its devices. What C++ makes
    there beside its arguments `is_anywhere`.
    """

    inner: torch.Tensor
    is_anywhere: bool = False

    @staticmethod
    def __new__(cls, inner: torch.Tensor, place: torch.device):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout, device="meta")

    def __init__(self, inner: torch.Tensor, place: torch.device):
        self.inner, self.place = inner, place

    device = property(lambda self: self.place)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is scaled_dot_product_attention:  # made of parts, some of which would be on "meta"
            return _open[-1].run(torch.ops.aten.scaled_dot_product_attention.default, args, dict(kwargs))
        if function is torch.Tensor.tolist:  # refused to subclasses
            return args[0].cpu().tolist()
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):  # lists would go to "meta"
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(place) if isinstance(place, list) else place for place in index)
            args = (args[0], index, *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise RuntimeError(f"{operation} on a tensor of a simulated device, whose simulation is over")

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __deepcopy__(self, memo):
        copied = OnDevice(self.inner.detach().clone(), self.place)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)


class Generator(torch.Generator):
    """A generator that knows which device it is for."""

    #: by the address of torch's own object: on the way through C++ it loses its class
    places: ClassVar[dict[int, torch.device]] = {}

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls, "cpu")
        cls.places[generator._cdata] = torch.device(device)
        return generator

    def __init__(self, device="cpu"):
        super().__init__()

    device = property(lambda self: self.places[self._cdata])

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        self.set_state(state.get_state())
        _captured.discard(self._cdata)


#: generators that take a capture to go on
_captured: set[int] = set()


class Wait(NamedTuple):
    """The host waited for the device: to "read" or to "upload", in which line of the package."""

    kind: str
    operation: str
    where: str


class Devices(TorchDispatchMode):
    """The simulated devices, as long as they are open.

    Attributes:
        waits: since the beginning.
        graphs: that were captured and are held; `num_replays` counts all of them.
        pools: those that anything was captured into.
        sync_debug_mode: "warn": torch warns of waits.
        capturing: the one that is being captured.
        current: index of the current device.
        timed: indices of the devices on which events were recorded.
    """

    def __init__(self):
        super().__init__()
        self.waits: list[Wait] = []
        self.graphs: WeakSet[Graph] = WeakSet()
        self.pools: list[object] = []
        self.sync_debug_mode: int | str = 0
        self.num_replays, self.current = 0, 0
        self.timed: set[int] = set()
        self.capturing: Graph | None = None
        self.generators = [Generator(f"cuda:{index}") for index in range(NUM_DEVICES)]
        self.under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def wait(self, kind: str, operation) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"{operation}: operation not permitted when stream is capturing")
        self.waits.append(Wait(kind, str(operation), _line_of_the_package()))
        if self.sync_debug_mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        for on_host, values in self.under_way:
            on_host.copy_(values)
        self.under_way.clear()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return self.run(operation, args, dict(kwargs or {}))

    def run(self, operation, args: tuple, kwargs: dict):
        """One operation of torch, held to the rules."""
        name = operation.overloadpacket.__name__
        tensors = tensors_in((args, kwargs))
        on_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        asked = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        is_anywhere = asked is not None and asked.type == "meta" and not on_device
        if asked is not None and asked.type in ("meta", "cuda"):
            is_given = asked.type == "meta" and on_device
            asked = None if is_given else torch.device("cuda", self.current if asked.index is None else asked.index)
        if not on_device and (asked is None or asked.type == "cpu"):
            return operation(*args, **kwargs)  # the host's own business
        placed = [tensor for tensor in on_device if not tensor.is_anywhere] or on_device
        source = placed[0].device if placed else asked
        goal = asked or source
        is_async = False
        if name in COPIES:
            is_async = self._copy(operation, args, kwargs, goal)
        elif name in READS:
            self.wait("read", operation)
        elif on_device:
            self._check(operation, name, tensors, source)
        if _takes_generator(operation):
            kwargs["generator"] = self._generator(kwargs.get("generator"), goal)
        if self.capturing is not None:
            self.capturing.check(operation, goal, kwargs.get("generator"))
        result = self._computed(operation, args, kwargs, goal, on_device)
        if is_anywhere:
            result.is_anywhere = True
        return self._read_later(result) if is_async else result

    def _computed(self, operation, args: tuple, kwargs: dict, goal: torch.device, on_device: list[OnDevice]):
        outer = {id(value.inner): value for value in on_device}
        args, kwargs = with_tensors((args, kwargs), lambda value: value.inner, OnDevice)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        result = operation(*args, **kwargs)
        if self.capturing is not None:
            self.capturing.add(operation, args, kwargs, result)

        if goal.type == "cpu":
            return result
        return with_tensors(result, lambda value: outer[id(value)] if id(value) in outer else OnDevice(value, goal))

    def _copy(self, operation, args: tuple, kwargs: dict, goal: torch.device) -> bool:
        """Whether it is one to the host that nobody waits for."""
        is_in_place = operation.overloadpacket.__name__ == "copy_"
        source, goal = (args[1].device, args[0].device) if is_in_place else (args[0].device, goal)
        non_blocking = kwargs.get("non_blocking") or (is_in_place and len(args) > 2 and args[2])
        if source.type == goal.type:
            return False
        if self.capturing is not None or not non_blocking or (is_in_place and goal.type == "cpu"):
            self.wait("read" if goal.type == "cpu" else "upload", operation)
            return False
        return goal.type == "cpu"

    def _read_later(self, values: torch.Tensor) -> torch.Tensor:
        on_host = torch.full_like(values, torch.nan if values.is_floating_point() else torch.iinfo(values.dtype).min)
        self.under_way.append((on_host, values))
        return on_host

    def _check(self, operation, name: str, tensors: list[torch.Tensor], place: torch.device) -> None:
        """What CUDA would refuse, or wait for."""
        if name in INDEXING:
            of_host = [index for index in tensors[1:] if index.device.type == "cpu" and index.ndim]
            if of_host:  # torch takes these, and uploads them
                self.wait("upload", operation)
            if any(index.dtype in (torch.bool, torch.uint8) for index in tensors[1:]):
                self.wait("read", operation)
            tensors = [tensor for tensor in tensors if not any(tensor is index for index in of_host)]
        takes_scalars = _is_pointwise(operation) or name in TAKES_SCALARS

        def is_scalar(tensor) -> bool:
            is_of_host = takes_scalars and tensor.device.type == "cpu"
            return tensor.ndim == 0 and (getattr(tensor, "is_anywhere", False) or is_of_host)

        others = {tensor.device for tensor in tensors if tensor.device != place and not is_scalar(tensor)}
        if others:
            raise RuntimeError(f"{operation}: tensors on {place} and {', '.join(map(str, others))}")

    def _generator(self, generator, place: torch.device):
        if place.type == "cpu":
            return generator
        generator = self.generators[place.index] if generator is None else generator
        if self.capturing is None and generator._cdata in _captured:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        own = Generator.places.get(generator._cdata, torch.device("cpu"))
        if own != place:
            raise RuntimeError(f"a generator on {own} for a tensor on {place}")
        return generator


# Asked of every operation, and slow to ask torch.
@cache
def _takes_generator(operation) -> bool:
    return any(argument.name == "generator" for argument in operation._schema.arguments)


@cache
def _is_pointwise(operation) -> bool:
    return torch.Tag.pointwise in operation.tags


def _line_of_the_package() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name.startswith(PACKAGE):
            return f"{name}:{line} {linecache.getline(name, line).strip()}"
        frame = frame.f_back
    return ""


_open: list[Devices] = []


def _fakes(devices: Devices) -> dict:
    """What of `torch.cuda` is there."""

    def index_of(place) -> int:
        if isinstance(place, int):
            return place
        if torch.device(place).type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {place}")
        index = torch.device(place).index
        return devices.current if index is None else index

    @contextlib.contextmanager
    def device(place):
        before, devices.current = devices.current, index_of(place)
        try:
            yield
        finally:
            devices.current = before

    @contextlib.contextmanager
    def graph(cuda_graph: Graph, pool=None, **kwargs):
        generator = devices.generators[devices.current]._cdata
        _captured.add(generator)  # and there it stays if the capture fails
        try:
            cuda_graph.begin(devices, pool)
            yield
        finally:
            devices.capturing = None
        _captured.discard(generator)

    def set_sync_debug_mode(mode: int | str) -> None:
        devices.sync_debug_mode = mode

    def stream(place=None) -> SimpleNamespace:
        return SimpleNamespace(index=index_of("cuda" if place is None else place), wait_stream=lambda other: None)

    def event(**kwargs) -> SimpleNamespace:
        record = lambda on=None: devices.timed.add((on or stream()).index)  # noqa: E731
        return SimpleNamespace(record=record, elapsed_time=lambda other: 1.0)

    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: devices.capturing is not None,
        "device_count": lambda: NUM_DEVICES,
        "current_device": lambda: devices.current,
        "device": device,
        "synchronize": lambda *place: devices.wait("read", "synchronize"),
        "manual_seed_all": lambda seed: [generator.manual_seed(seed) for generator in devices.generators],
        "get_rng_state": lambda place="cuda": devices.generators[index_of(place)].get_state(),
        "set_rng_state": lambda state, place="cuda": devices.generators[index_of(place)].set_state(state),
        "default_generators": tuple(devices.generators),
        "graph_pool_handle": object,
        "get_sync_debug_mode": lambda: devices.sync_debug_mode,
        "set_sync_debug_mode": set_sync_debug_mode,
        "CUDAGraph": lambda: Graph(devices),
        "graph": graph,
        "Stream": stream,
        "Event": event,
        "stream": contextlib.nullcontext,
        "current_stream": stream,
        "set_stream": lambda stream: None,
    }


@contextlib.contextmanager
def simulated():
    """`torch.cuda` has devices, "cuda:0" and so on; yields what watches over them. "cuda" alone torch's C++ refuses."""
    devices = Devices()
    with contextlib.ExitStack() as stack:
        for name, value in _fakes(devices).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "Generator", Generator))
        stack.enter_context(devices)
        # `torch.tensor(..., device=...)` is made on the host and copied, and the copy is seen.
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        _open.append(devices)
        stack.callback(_open.pop)
        yield devices
