"""What the user's own processors and criteria remember: copied, so that rows and drafts go their own ways, and kept in step."""

from __future__ import annotations

import copy
import gc
import io
import queue
import threading
import types
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

#: what generation does not change, and what is there to be shared: copies have the very same one, however deep it lies
SHARED = (
    nn.Module,
    nn.Parameter,
    PreTrainedTokenizerBase,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Event,
    threading.Condition,
    threading.Thread,
    io.IOBase,
)
#: others take out of these what a part puts in: a copy would be filled in vain
CHANNELS = (queue.Queue,)
PLAIN = (int, float, complex, str, bytes, type(None))
#: what a copy leaves as it is, and what it never looks into
ATOMS = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.GeneratorType, Tensor)


class CannotCopy(TypeError):
    """A processor or criterion has a state that cannot be copied."""


def clone(parts: list, argument: str = "logits_processor") -> list:
    """Independent copies of processors or criteria, copied together, so that what they share their copies share, too.

    A part with a `clone()` method makes its own copy, anything else is copied deeply, but for what is `SHARED`.

    Args:
        argument: what the user gave them as.

    Raises:
        CannotCopy: one of them holds a generator, a queue or the like.
    """
    memo = {id(part): part.clone() for part in parts if hasattr(part, "clone") and not isinstance(part, SHARED)}
    copies = []
    for part in parts:
        try:
            memo |= {id(value): value for value in _shared(part, known=memo)}
            copies.append(copy.deepcopy(part, memo))
        except Exception as error:
            raise CannotCopy(
                f"`{argument}`: {type(part).__name__} holds what cannot be copied ({error}), and drafts and the rows of a "
                "batch are tried on copies: give it a `clone()` method that returns one. A single prompt is decoded without."
            ) from error
    return copies


def _shared(part, known: dict[int, Any]) -> list:
    """What is reachable from `part` that copies share with it."""
    found, seen, todo = [], set(known), [part]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CHANNELS):
            raise TypeError(f"a {type(value).__name__}, which others read")
        if isinstance(value, SHARED):
            found.append(value)
        elif not isinstance(value, ATOMS):
            todo += gc.get_referents(value)
    return found


class UsersOwn:
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
        for before, after, onto in zip(self.known, source, goal, strict=True):
            _carried(before, after, onto, set())


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
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
    if not hasattr(value, "__dict__") and not slots:
        return None
    return {name: getattr(value, name) for name in (*getattr(value, "__dict__", ()), *slots) if hasattr(value, name)}


def _picture(value, twin, seen: dict[int, Any]):
    """What `value` holds, as far as `twin`, a copy of it, has it for itself: what both share is not looked into."""
    if value is twin or type(value) is not type(twin):
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


def _carried(before, after, onto, seen: set[int]):
    """What belongs in the place of `onto`, once what changed from `before`, a picture, to `after` has been brought there."""
    if after is before or after is onto or id(after) in seen:
        return onto
    if type(after) is not type(onto):
        return onto if _is_same(before, after) else _own(after)
    if isinstance(after, Tensor) and isinstance(before, _Numbers):
        if not _are_alike(before.content, after, onto):
            return onto if _is_same(before, after) else _own(after)
        # Without asking the device whether anything changed.
        return onto.copy_(torch.where(after == before.content, onto, after))
    if isinstance(after, np.ndarray) and isinstance(before, np.ndarray):
        if not before.shape == after.shape == onto.shape:
            return onto if _is_same(before, after) else _own(after)
        np.copyto(onto, after, where=after != before)
        return onto
    if type(after) is tuple and type(before) is tuple and len(before) == len(after) == len(onto):
        return tuple(_carried(old, new, own, seen) for old, new, own in zip(before, after, onto, strict=True))
    if isinstance(before, _Fields) and (fields := _fields(after)) is not None:
        seen.add(id(after))
        _carry_fields(before, fields, onto, seen)
    elif isinstance(before, set) and isinstance(after, set):
        onto -= before - after
        onto |= after - before
    elif isinstance(before, list) and isinstance(after, (list, deque)):
        seen.add(id(after))
        for i, (old, new, own) in enumerate(zip(before, after, list(onto), strict=False)):
            onto[i] = _carried(old, new, own, seen)
        onto.extend(_own(new) for new in list(after)[len(before) :])
        for _ in range(min(len(before) - len(after), len(onto))):
            onto.pop()
    elif isinstance(before, dict) and isinstance(after, dict):
        seen.add(id(after))
        for key in before.keys() - after.keys():
            onto.pop(key, None)
        for key, new in after.items():
            if key not in before:
                onto[key] = _own(new)
            elif key in onto:
                onto[key] = _carried(before[key], new, onto[key], seen)
    else:
        return onto if _is_same(before, after) else after
    return onto


def _carry_fields(before: _Fields, fields: dict[str, Any], onto, seen: set[int]) -> None:
    own = _fields(onto) or {}
    for name in (before.keys() - fields.keys()) & own.keys():
        delattr(onto, name)
    for name, new in fields.items():
        if name not in before:
            setattr(onto, name, _own(new))
        elif name in own and (carried := _carried(before[name], new, own[name], seen)) is not own[name]:
            setattr(onto, name, carried)


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


def _own(value):
    """A value that appeared, for whoever had none."""
    return clone([value])[0]
