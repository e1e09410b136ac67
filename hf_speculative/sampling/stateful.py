"""Keep the state of the user's own processors and criteria in step with copies that work in their place."""

import copyreg
from collections import deque
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .copying import ATOMS, SHARED, clone

PLAIN = (int, float, complex, str, bytes, type(None))
#: by object, by attribute: what tells whether it has changed
Pictures = list[dict[str, Any]]


class StatefulProcessors:
    """The user's own objects, while copies work in their place.

    What is changed on them from outside, a stop button say, reaches the copies; and they show what one of the copies remembers.
    Attributes are carried as a whole, and only those that changed. Lists, dicts, tensors and arrays that the user holds are
    filled in place.

    Attributes:
        copies: as the objects were at first, but for what was changed from outside; never called.
    """

    def __init__(self, originals: list, argument: str):
        self.originals, self.copies = originals, clone(originals, argument)
        self.known, self.shown = _pictures(originals), _pictures(self.copies)

    def hand_out(self, sets: Iterable[list]) -> None:
        """Bring what was changed from outside to `copies` and to other sets of copies."""
        if (now := _pictures(self.originals)) == self.known:
            return
        for copies in (self.copies, *sets):
            _carry(self.known, now, self.originals, copies)
        for before, after, shown in zip(self.known, now, self.shown, strict=True):
            shown |= {name: picture for name, picture in after.items() if before.get(name) != picture}
            for name in before.keys() - after.keys():
                shown.pop(name, None)
        self.known = now

    def show(self, copies: list) -> None:
        """Bring what `copies` remember by now to the user's own objects."""
        now = _pictures(copies)
        _carry(self.shown, now, copies, self.originals, in_place=True)
        self.known, self.shown = _pictures(self.originals), now


def _carry(before: Pictures, now: Pictures, source: list, goal: list, in_place: bool = False) -> None:
    """Attributes of `source` whose pictures have changed come to `goal`; what is one object stays one object."""
    changed, done = [], dict[int, Any]()
    for old, new, one, other in zip(before, now, source, goal, strict=True):
        changed += [(one, other, name) for name in new if old.get(name) != new[name]]
        for name in old.keys() - new.keys():
            if hasattr(other, name):
                object.__delattr__(other, name)
    values = clone([getattr(one, name) for one, _, name in changed], memo=dict(zip(map(id, source), goal, strict=True)))
    for (_, other, name), value in zip(changed, values, strict=True):
        own = getattr(other, name, None)
        # Past a `__setattr__` of the user's, as objects are copied.
        object.__setattr__(other, name, _refilled(own, value, done) if in_place else value)


def _pictures(objects: list) -> Pictures:
    seen = {id(one): ("itself", one) for one in objects}
    return [{name: _picture(value, dict(seen)) for name, value in _attributes(one).items()} for one in objects]


def _attributes(value) -> dict[str, Any]:
    slots = {name: getattr(value, name) for name in copyreg._slotnames(type(value)) if hasattr(value, name)}  # type: ignore[attr-defined]
    return getattr(value, "__dict__", {}) | slots


class _Same:
    """Equal where it is of the same object, which it keeps, so that no other gets its id."""

    def __init__(self, value, version: int | None = None):
        self.value, self.version = value, version

    def __eq__(self, other) -> bool:
        return isinstance(other, _Same) and self.value is other.value and self.version == other.version


def _picture(value, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)][0]
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Tensor):  # torch counts what is written to it, so that the device need not be asked
        return _Same(value, None if value.is_inference() else value._version)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    seen[id(value)] = len(seen), value
    if isinstance(value, dict):
        return type(value), {key: _picture(item, seen) for key, item in value.items()}, _picture_of(value, seen)
    if isinstance(value, (list, tuple, deque, set)):
        return type(value), [_picture(item, seen) for item in value], _picture_of(value, seen)
    if isinstance(value, (*ATOMS, *SHARED)):
        return _Same(value)
    try:
        return type(value), _picture(value.__reduce_ex__(4)[1:3], seen)  # as it is copied
    except Exception:  # a lock, say, or whatever else is not to be pickled
        return _Same(value)


def _picture_of(value, seen: dict[int, Any]) -> dict[str, Any]:
    return {name: _picture(item, seen) for name, item in _attributes(value).items()}


def _refilled(own, new, done: dict[int, Any]) -> Any:
    """Replace `own` by `new`, in place where possible, so that references to `own` see the new values.

    Args:
        done: what stands for a new object already, by its id; none stands for two.
    """
    if id(new) in done:
        return done[id(new)]
    is_free = type(own) is type(new) and own is not new and not any(own is one for one in done.values())
    if isinstance(new, (Tensor, np.ndarray)):
        if not (is_free and _has_room(own, new)):
            return new
        np.copyto(own, new) if isinstance(own, np.ndarray) else own.copy_(new)
        done[id(new)] = own
        return own
    if type(new) not in (list, deque, dict, set):
        return new
    own = done[id(new)] = own if is_free else new
    if isinstance(own, dict):
        items: Any = {key: _refilled(own.get(key), item, done) for key, item in new.items()}
    elif isinstance(own, set):
        items = set(new)
    else:
        items = [_refilled(old, item, done) for old, item in zip_longest(list(own)[: len(new)], new)]
    own.clear()
    own.extend(items) if isinstance(own, (list, deque)) else own.update(items)
    return own


def _has_room(own: Any, new: Any) -> bool:
    if own.shape != new.shape or own.dtype != new.dtype:
        return False
    if isinstance(own, np.ndarray):
        return own.flags.writeable
    return own.device == new.device and own.is_contiguous() and not (own.is_inference() or own.requires_grad)
