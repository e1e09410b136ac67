"""The parameters of a layer whose weight is packed: reading the weight restores the plain one, bit for bit."""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..hf_compat import OWNED_ONCE, has_own_storage, owners_of, version_of
from .products import unpacked

#: numbers of a shared weight that are compared before use
NUM_SAMPLES = 4096

WEIGHT = "weight"
_lock = threading.RLock()


@dataclass(frozen=True)
class Stamp:
    """The state of a shared weight when it was packed."""

    version: int
    place: int
    sample: Tensor

    @staticmethod
    def of(weight: Tensor) -> "Stamp":
        step = max(1, weight.numel() // NUM_SAMPLES)
        return Stamp(version_of(weight), weight.data_ptr(), weight.detach().flatten()[::step].clone())

    def fits(self, weight: Tensor) -> bool:
        """Whether it was neither written to nor moved, by torch's counters, which miss writes to `weight.data`."""
        return self.version == weight._version and self.place == weight.data_ptr()

    def equals(self, weight: Tensor) -> bool:
        """Whether sampled numbers are unchanged: an optimizer that writes to `weight.data` changes nearly all."""
        return self.fits(weight) and torch.equal(Stamp.of(weight).sample, self.sample)


class Reader(Protocol):
    def release(self) -> None:
        """Stop reading the weight: it is freed when this returns."""


class PackedParameters(dict):
    """`_parameters` of a layer with a packed weight: reading restores the plain one.

    Attributes:
        packed: the weight's numbers, see `products`; `None` while the plain one is there.
        is_plain_transposed: the plain one is `(in, out)`.
        stamp: of a weight that an embedding has as well, and that stays where it is.
        num_restored: how often it was restored.
        readers: compiled passes that read the packed weight, and let go of it before the plain one is back.
    """

    packed: Tensor | None = None
    is_plain_transposed: bool = False
    stamp: Stamp | None = None
    num_restored: int = 0
    readers: WeakSet[Reader] = cast("WeakSet[Reader]", ())

    def peek(self) -> Tensor:
        """The weight as a tensor of the right shape, type and device: its numbers are not there while it is packed."""
        return cast(Tensor, dict.__getitem__(self, WEIGHT))

    @property
    def num_outputs(self) -> int:
        return self.peek().shape[self.is_plain_transposed]

    def read_by(self, reader: Reader) -> Tensor | None:
        """The packed weight, if there is one; `reader` is told before it is restored."""
        with _lock:
            if self.packed is not None:
                self.readers = self.readers or WeakSet()
                self.readers.add(reader)
            return self.packed

    def is_up_to_date(self) -> bool:
        """Whether torch counts no write to a shared weight since it was packed."""
        return self.stamp is None or self.stamp.fits(self.peek())

    @torch.inference_mode(False)
    def restore(self) -> None:
        """Restore the plain weight."""
        with _lock:
            for reader in tuple(self.readers):
                reader.release()
            if self.packed is not None and self.stamp is None:
                plain = unpacked(self.packed, self.num_outputs)
                self._write(plain.t().contiguous() if self.is_plain_transposed else plain)
                self.num_restored += 1
            self.packed = self.stamp = None
            self.readers = cast("WeakSet[Reader]", ())

    def check(self) -> None:
        """End the packing of a shared weight that was written to."""
        if self.stamp is not None and not self.stamp.equals(self.peek()):
            self.restore()

    def _write(self, data: Tensor) -> None:
        weight = self.peek()
        weight.data = data
        # A graph that still knows it raises instead of using the wrong numbers.
        torch.autograd.graph.increment_version(weight)

    def _ask(self) -> None:
        if self.packed is not None and self.stamp is None:
            self.restore()

    def _all(self) -> dict:
        values = dict.copy(self)  # first, so that `hold` sees the reference
        self._ask()
        return values

    # Reading restores the weight, here and by `_reading`; writing does as well, by `_restoring`.

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if name == WEIGHT:
            self._ask()
        return value

    def get(self, name, default=None):
        value = super().get(name, default)
        if name == WEIGHT:
            self._ask()
        return value

    def __iter__(self):  # its being here makes `dict(...)` and `**` read item by item
        return super().__iter__()

    def __reduce_ex__(self, protocol):
        return dict, (self._all(),)


def _reading(method: Callable) -> Callable:
    """A method by which all that dicts hold is read."""
    return functools.wraps(method)(lambda self, *args: method(self._all(), *args))


def _restoring(method: Callable) -> Callable:
    """A method by which dicts are written to, which ends the packing first."""

    @functools.wraps(method)
    def restores(self: PackedParameters, *args, **kwargs):
        self.restore()
        return method(self, *args, **kwargs)

    return restores


for _name in ("items", "values", "copy", "__or__"):
    setattr(PackedParameters, _name, _reading(getattr(dict, _name)))
for _name in ("__setitem__", "__delitem__", "__ior__", "pop", "popitem", "setdefault", "update", "clear"):
    setattr(PackedParameters, _name, _restoring(getattr(dict, _name)))


def hold(parameters: PackedParameters, packed: Tensor, is_shared: bool) -> bool:
    """Put `packed` in place of the plain weight, or beside one that `is_shared`. False if other code refers to it."""
    with _lock:
        parameters.stamp = Stamp.of(parameters.peek()) if is_shared else None
        # From here on readers of the weight wait for the lock; earlier ones are found by `is_held`.
        parameters.packed = packed
        if not is_shared and is_held(parameters):
            parameters.packed = None
            return False
        if not is_shared:
            weight = parameters.peek()
            # Of the right shape, dtype and device; its numbers are NaN, and cannot be written to.
            parameters._write(torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape))
        return True


def is_held(parameters: dict) -> bool:
    """Whether other code refers to the weight or its memory: an optimizer, another model, autograd, NumPy."""
    weight = dict.__getitem__(parameters, WEIGHT)
    return not has_own_storage(weight) or owners_of(weight) != OWNED_ONCE


def parameters_of(model: nn.Module) -> Iterator[Tensor]:
    """`model.parameters()` for their shapes, dtypes and devices: packed weights stay packed, without numbers."""
    return (weight for _, weight in named_parameters_of(model))


def named_parameters_of(model: nn.Module, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """`model.named_parameters()` for the same use."""
    seen: set[Tensor | None] = {None}
    for path, module in model.named_modules(remove_duplicate=remove_duplicate):
        for name, weight in dict.items(module._parameters):
            if weight not in seen:
                seen |= {weight} if remove_duplicate else set()
                yield f"{path}.{name}" if path else name, cast(Tensor, weight)


def own_tensors(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """The same of `modules` without their children, and buffers: quick enough for every call."""
    for module in modules:
        own = (*dict.values(module._parameters), *module._buffers.values())
        yield from (tensor for tensor in own if tensor is not None)


def weight_of(module: nn.Module) -> Tensor:
    """The same of a layer's weight."""
    own = dict.get(module._parameters, WEIGHT)
    return cast(Tensor, getattr(module, WEIGHT, None) if own is None else own)
