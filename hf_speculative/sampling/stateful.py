"""What the user's own processors and criteria remember: copied, so that rows and drafts go their own ways, and kept in step."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .copying import ATOMS, clone

PLAIN = (int, float, complex, str, bytes, type(None))
#: there is more to these than their attributes: they are replaced as a whole
OPAQUE = (random.Random, functools.partial)


class StatefulProcessors:
    """The user's own objects, while copies work in their place.

    What is changed on them from outside, a stop button say, reaches the copies; and they show what one of the copies remembers.
    Only what differs is carried, and in place, so that whoever holds a list of theirs sees it as well.

    Attributes:
        copies: as the objects were at first, but for what was changed from outside; never called.
    """

    def __init__(self, originals: list, argument: str):
        self.originals, self.copies = originals, clone(originals, argument)
        self._look(self.copies)

    def hand_out(self, sets: Iterable[list]) -> None:
        """Bring what was changed from outside to `copies` and to other sets of copies."""
        if not all(map(_is_same, self.known, self.originals)):
            for copies in (self.copies, *sets):
                self._carry(self.originals, copies)
            self._look(self.copies)

    def show(self, copies: list) -> None:
        """Bring what `copies` remember by now to the user's own objects."""
        self._carry(copies, self.originals)
        self._look(copies)

    def _look(self, twins: list) -> None:
        self.known = [_picture(own, twin, {}) for own, twin in zip(self.originals, twins, strict=True)]

    def _carry(self, source: list, goal: list) -> None:
        carrying = _Carrying()
        for before, after, onto in zip(self.known, source, goal, strict=True):
            carrying.carried(before, after, onto)


class _Fields(dict):
    """The attributes that an object had."""


@dataclass(frozen=True)
class _Numbers:
    """What a tensor held. Torch counts what is written to it, so that the device need not be asked whether anything was."""

    tensor: Tensor
    content: Tensor
    version: int | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Numbers:
        return cls(tensor, tensor.clone(), None if tensor.is_inference() else tensor._version)

    def are_in(self, value) -> bool:
        if value is self.tensor and self.version is not None:
            return value._version == self.version
        return isinstance(value, Tensor) and _are_alike(value, self.content) and torch.equal(value, self.content)


def _are_alike(*tensors: Tensor) -> bool:
    return len({(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors}) == 1


def _fields(value) -> dict[str, Any] | None:
    """The attributes of a plain object; `None` for anything else."""
    if isinstance(value, (*ATOMS, np.ndarray)):
        return None
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    if not hasattr(value, "__dict__") and not slots:
        return None
    return {name: getattr(value, name) for name in (*getattr(value, "__dict__", ()), *slots) if hasattr(value, name)}


def _is_opaque(value) -> bool:
    """There is more to it than what a picture shows: a dict, say, of a class that has attributes as well."""
    return isinstance(value, OPAQUE) or (
        isinstance(value, (list, deque, set, dict)) and bool(getattr(value, "__dict__", None))
    )


def _slots(kind: type) -> list[str]:
    """The names that a class's `__slots__` are read by: private ones have the class's in front."""
    names = vars(kind).get("__slots__", ())
    names = [names] if isinstance(names, str) else [name for name in names if name not in ("__dict__", "__weakref__")]
    is_private = [name.startswith("__") and not name.endswith("__") for name in names]
    own = kind.__name__.lstrip("_")
    return [f"_{own}{name}" if private else name for name, private in zip(names, is_private, strict=True)]


def _picture(value, twin, seen: dict[int, Any]):
    """What `value` holds, as far as `twin`, a copy of it, has it for itself: what both share is not looked into."""
    if value is twin or type(value) is not type(twin) or _is_opaque(value):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Tensor):
        return _Numbers.of(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, set):
        return set(value)
    if isinstance(value, (list, deque)):
        items = seen[id(value)] = []
        twins = [*twin, *[None] * len(value)]
        items += [_picture(item, other, seen) for item, other in zip(value, twins, strict=False)]
        return items
    if type(value) is tuple:
        return tuple(_picture(item, other, seen) for item, other in zip(value, twin, strict=False))
    if isinstance(value, dict):
        entries = seen[id(value)] = {}
        entries |= {key: _picture(item, twin.get(key), seen) for key, item in value.items()}
        return entries
    fields = _fields(value)
    if fields is None:
        return value
    attributes = seen[id(value)] = _Fields()
    attributes |= {name: _picture(item, getattr(twin, name, None), seen) for name, item in fields.items()}
    return attributes


class _Carrying:
    """One way from objects to their twins. What is one object there is one object here, wherever it moved.

    Attributes:
        done: what stands for an object, by its id; also a memo of `copy.deepcopy`.
        used: ids of what stands for one already, and for no other.
    """

    def __init__(self):
        self.done: dict[int, Any] = {}
        self.used: set[int] = set()

    def carried(self, before, after, onto):
        """What belongs in the place of `onto`, once what changed from `before`, a picture, to `after` has come there."""
        if after is before or after is onto:
            return onto
        if id(after) in self.done:
            return self.done[id(after)]
        if id(onto) in self.used:
            return self._own(after)
        if _is_opaque(after):
            return self._own(after)
        if type(after) is not type(onto):
            return onto if _is_same(before, after) else self._own(after)
        if isinstance(after, Tensor) and isinstance(before, _Numbers):
            if not _are_alike(before.content, after, onto):
                return onto if _is_same(before, after) else self._own(after)
            # Without asking the device whether anything changed.
            return self._in_place(after, onto).copy_(torch.where(after == before.content, onto, after))
        if isinstance(after, np.ndarray) and isinstance(before, np.ndarray):
            if not before.shape == after.shape == onto.shape:
                return onto if _is_same(before, after) else self._own(after)
            np.copyto(self._in_place(after, onto), after, where=after != before)
            return onto
        if type(after) is tuple and type(before) is tuple and len(before) == len(after) == len(onto):
            return tuple(self.carried(old, new, own) for old, new, own in zip(before, after, onto, strict=True))
        if isinstance(before, _Fields) and (fields := _fields(after)) is not None:
            self._in_place(after, onto)
            try:
                self._carry_fields(before, fields, onto)
            except AttributeError:  # it cannot be changed, as a frozen dataclass: another takes its place
                del self.done[id(after)]
                return self._own(after)
        elif isinstance(before, set) and isinstance(after, set):
            self._in_place(after, onto)
            onto -= before - after
            onto |= after - before
        elif isinstance(before, list) and isinstance(after, (list, deque)):
            self._in_place(after, onto)
            for i, (old, new, own) in enumerate(zip(before, after, list(onto), strict=False)):
                onto[i] = self.carried(old, new, own)
            onto.extend(self._own(new) for new in list(after)[len(before) :])
            for _ in range(min(len(before) - len(after), len(onto))):
                onto.pop()
        elif isinstance(before, dict) and isinstance(after, dict):
            self._in_place(after, onto)
            for key in before.keys() - after.keys():
                onto.pop(key, None)
            for key, new in after.items():
                if key not in before:
                    onto[key] = self._own(new)
                elif key in onto:
                    onto[key] = self.carried(before[key], new, onto[key])
        else:
            return onto if _is_same(before, after) else self._own(after)
        return onto

    def _carry_fields(self, before: _Fields, fields: dict[str, Any], onto) -> None:
        own = _fields(onto) or {}
        for name in (before.keys() - fields.keys()) & own.keys():
            delattr(onto, name)
        for name, new in fields.items():
            if name not in before:
                setattr(onto, name, self._own(new))
            elif name in own and (carried := self.carried(before[name], new, own[name])) is not own[name]:
                setattr(onto, name, carried)

    def _in_place(self, after, onto):
        self.done[id(after)] = onto
        self.used.add(id(onto))
        return onto

    def _own(self, value):
        """A value that appeared, for whoever had none."""
        return clone([value], memo=self.done)[0]


def _is_same(before, after, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a value is what its picture shows; of what has no parts to look at, only its identity counts."""
    if before is after or id(before) in seen:
        return True
    seen |= {id(before)}
    if isinstance(before, _Numbers):
        return before.are_in(after)
    if isinstance(before, np.ndarray):
        return isinstance(after, np.ndarray) and np.array_equal(before, after)
    if isinstance(before, _Fields):
        after = _fields(after)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(item, after[key], seen) for key, item in before.items())
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple, deque)):
        same = (_is_same(old, new, seen) for old, new in zip(before, after, strict=False))
        return len(before) == len(after) and all(same)
    return type(before) is type(after) and isinstance(after, (*PLAIN, set)) and before == after
