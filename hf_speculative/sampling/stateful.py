"""What the user's own processors and criteria remember: copied, so that rows and drafts go their own ways, and kept in step."""

from collections import deque
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
from torch import Tensor

from .copying import ATOMS, SHARED, clone

PLAIN = (int, float, complex, str, bytes, type(None))


class StatefulProcessors:
    """The user's own objects, while copies work in their place.

    What is changed on them from outside, a stop button say, reaches the copies; and they show what one of the copies remembers.
    Attributes are carried as a whole, and only those that changed. Lists and dicts that the user holds are filled in place.

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
        changed = [
            (i, name, getattr(self.originals[i], name))
            for i, (before, after) in enumerate(zip(self.known, now, strict=True))
            for name in after
            if after[name] != before.get(name)
        ]
        for copies in (self.copies, *sets):
            for i, name, value in changed:
                setattr(copies[i], name, clone([value])[0])
        for i, name, _ in changed:
            self.shown[i][name] = now[i][name]
        self.known = now

    def show(self, copies: list) -> None:
        """Bring what `copies` remember by now to the user's own objects."""
        now, done = _pictures(copies), dict[int, Any]()
        for own, copy, before, after in zip(self.originals, clone(copies), self.shown, now, strict=True):
            for name in after:
                if after[name] != before.get(name):
                    setattr(own, name, _refilled(getattr(own, name, None), getattr(copy, name), done))
        self.known, self.shown = _pictures(self.originals), now


def _pictures(objects: list) -> list[dict[str, Any]]:
    """What tells for each attribute of each object whether it has changed."""
    seen = {id(one): ("itself", one) for one in objects}
    return [{name: _picture(value, dict(seen)) for name, value in _attributes(one).items()} for one in objects]


def _attributes(value) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


def _picture(value, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)][0]
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Tensor):  # torch counts what is written to it, so that the device need not be asked
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    seen[id(value)] = len(seen), value  # and keeps it, so that no other gets its id
    if isinstance(value, dict):
        return type(value), {key: _picture(item, seen) for key, item in value.items()}, _attributes(value)
    if isinstance(value, (list, tuple, deque, set)):
        return type(value), [_picture(item, seen) for item in value], _attributes(value)
    if isinstance(value, (*ATOMS, *SHARED)):
        return id(value)
    try:
        return type(value), _picture(value.__reduce_ex__(4)[1:3], seen)  # as it is copied
    except TypeError:  # a lock, say
        return id(value)


def _refilled(own, new, done: dict[int, Any]) -> Any:
    """`new` in the place of `own`: a list, dict or set that is there is filled anew, for whoever holds it.

    Args:
        done: what stands for a new object already, by its id; none stands for two.
    """
    if id(new) in done:
        return done[id(new)]
    if type(new) not in (list, deque, dict, set):
        return new
    if type(own) is not type(new) or any(own is one for one in done.values()):
        own = new
    done[id(new)] = own
    if isinstance(own, dict):
        items: Any = {key: _refilled(own.get(key), item, done) for key, item in new.items()}
    elif isinstance(own, set):
        items = set(new)
    else:
        items = [_refilled(old, item, done) for old, item in zip_longest(list(own)[: len(new)], new)]
    own.clear()
    own.extend(items) if isinstance(own, (list, deque)) else own.update(items)
    return own
