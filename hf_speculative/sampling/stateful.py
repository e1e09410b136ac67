"""The state of the user's own processors and criteria: kept by row while drafts are tried, and in step with copies."""

import copyreg
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..hf_compat import version_of
from ..types import Batch
from .copying import ATOMS, SHARED, CannotCopy, check_alike, check_apart, clone
from .stateless import Prefixes

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
        return _Same(value, version_of(value))
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


class Memory:
    """A row's copies of the processors with a memory, and what they remembered after each position of the target's pass.

    Attributes:
        committed: as after the last emitted token.
        current: as after the last position.
        after: snapshots, one a position; none if the set is never copied, which `rollback(num_calls)` takes back instead.
    """

    def __init__(self, copies: list, memories: "Memories"):
        self.committed, self.memories = copies, memories
        self.calls = [0] * len(copies)

    def begin_pass(self) -> None:
        self._take_back(0)
        self.current = self.committed if self.memories.keeps_set else clone(self.committed)
        self.after: list[list] = []

    def end_position(self, is_draft: bool) -> None:
        if is_draft or self.memories.keeps_set:
            return
        try:
            self.after.append(clone(self.current))
        except CannotCopy as error:  # what it has made in its first call; nothing is drafted before
            self.memories.give_up(error)

    def go_to(self, position: int) -> None:
        """The next position follows this one, which need not be the last."""
        if position != len(self.after) - 1:
            self.current = clone(self.after[position])

    def commit(self, num_tokens: int, path: Sequence[int]) -> None:
        """Accept the first `num_tokens` positions on a path of draft tokens."""
        if self.after:
            self.committed = self.after[path[num_tokens - 2] + 1 if num_tokens > 1 else 0]
            self.after = []
        else:
            self.committed = self.current
        self._take_back(num_tokens)

    def _take_back(self, num_kept: int) -> None:
        for processor, num_calls in zip(self.committed, self.calls, strict=True):
            if self.memories.can_rollback and num_calls > num_kept:
                processor.rollback(num_calls - num_kept)
        self.calls = [0] * len(self.calls)


class Memories:
    """The processors with a memory: each row has a set of copies, see `Memory`.

    Drafts and verification work on copies of a row's set; `commit` keeps the one after the last emitted token. If all of
    them can take calls back, by a `rollback(num_calls)` method, a row's set is never copied within a round. Processors that
    cannot be copied are called themselves, which serves one row and no drafts: see `lookahead_unsupported_reason`.

    Args:
        criteria: the user's own.

    Attributes:
        has_begun: they were called, and copied as they are since.
        lookahead_unsupported_reason: why drafts cannot be processed ahead of what is emitted; `None` if they can.

    Raises:
        CannotCopy: one of them cannot be copied, or shares what it holds with a criterion, and there are several rows.
    """

    has_begun = False

    def __init__(self, originals: list, batch_size: int, criteria: list):
        self.originals, self.batch_size = originals, batch_size
        self.can_rollback = all(hasattr(processor, "rollback") for processor in originals)
        self.users: StatefulProcessors | None = None
        self.lookahead_unsupported_reason: CannotCopy | None = None
        if originals and not (self.can_rollback and batch_size == 1):
            try:
                check_alike(originals, batch_size)
                check_apart(originals, criteria)
                self.users = StatefulProcessors(originals, "logits_processor")
            except CannotCopy as error:
                if batch_size > 1:
                    raise
                self.lookahead_unsupported_reason = error
        self.keeps_set = self.can_rollback or self.lookahead_unsupported_reason is not None
        self.of_row: dict[int, Memory] = {}
        self.is_drafting = False

    def give_up(self, error: CannotCopy) -> None:
        """From now on each row's set is called once a token, and nothing is drafted."""
        if self.lookahead_unsupported_reason is None:
            self.lookahead_unsupported_reason, self.keeps_set = error, True
            warnings.warn(f"nothing is drafted in this call: {error}", stacklevel=2)

    def begin_pass(self, batch: Batch, is_draft: bool) -> None:
        if is_draft and self.is_drafting:  # the draft goes on where it was
            return
        self.is_drafting = is_draft
        for row in self.of_row.keys() - {0, *batch.rows}:  # done; the first row's are still shown
            del self.of_row[row]
        if self.users is not None:
            self.users.hand_out(memory.committed for memory in self.of_row.values())
        for row in batch.rows:
            if row not in self.of_row:
                copies = self.originals if self.users is None else clone(self.users.copies)
                self.of_row[row] = Memory(copies, self)
            self.of_row[row].begin_pass()

    def begin_position(self, prefixes: Prefixes, position: int) -> None:
        """The rows' memories become those of what the next position follows."""
        if position and not prefixes.is_draft and prefixes.tree is not None and not self.keeps_set:
            for lane, row in enumerate(prefixes.batch.rows):
                self.of_row[row].go_to(prefixes.before(lane, position))

    def end_position(self, prefixes: Prefixes) -> None:
        for row in prefixes.batch.rows:
            self.of_row[row].end_position(prefixes.is_draft)

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        for lane, (row, num) in enumerate(zip(batch.rows, num_tokens, strict=True)):
            path: Sequence[int] = range(num) if batch.host_path is None else batch.host_path[lane]
            self.of_row[row].commit(num, path)
        self.is_drafting, self.has_begun = False, True
        if self.users is not None and self.lookahead_unsupported_reason is None:
            self.users.show(self.of_row[0].committed)  # the user's own objects show the memory of the call's first row
