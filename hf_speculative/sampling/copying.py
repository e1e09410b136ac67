"""Copy the user's own processors and criteria independently, for rows and drafts."""

import copy
import copyreg
import enum
import gc
import io
import logging
import queue
import threading
import types
from collections import deque
from dataclasses import is_dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

#: types that copies share at any depth: generation does not change them, or they exist to be shared
SHARED = (
    *(nn.Module, nn.Parameter, PreTrainedTokenizerBase, PreTrainedConfig, GenerationConfig, types.ModuleType, io.IOBase),
    *(type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition, threading.Thread),
)
#: methods by which engines of grammars copy their matchers
COPIERS = ("fork", "deep_copy")
#: packages whose objects without such a method are tables, which generation does not change
ENGINES = ("xgrammar", "llguidance")
#: types that copies keep as they are, without looking inside
ATOMS = (type, types.FunctionType, types.BuiltinFunctionType, types.GeneratorType, Tensor)


#: types that hold what changes, and those that never change, or not by generation
CHANGING = (dict, list, set, bytearray, deque, Tensor, np.ndarray)
UNCHANGED = (*SHARED, *(kind for kind in ATOMS if kind is not Tensor), logging.Logger, enum.Enum, PurePath, partial)


class CannotCopy(TypeError):
    """A processor or criterion has a state that cannot be copied."""


def clone(parts: list, argument: str = "logits_processor", memo: dict[int, Any] | None = None) -> list:
    """Independent copies of processors or criteria, copied together, so that what they share their copies share, too.

    A part with a `clone()` method makes its own copy, and so does a matcher of a grammar engine inside a part. Anything else is
    copied deeply, but for what is `SHARED`.

    Args:
        argument: what the user gave them as.
        memo: what is copied already, as `copy.deepcopy` takes it; what is copied now is added.

    Raises:
        CannotCopy: one of them holds a generator, a queue or the like.
    """
    memo = {} if memo is None else memo
    for part in parts:
        if hasattr(part, "clone") and not isinstance(part, SHARED) and id(part) not in memo:
            memo[id(part)] = part.clone()
    copies = []
    for part in parts:
        try:
            memo |= _known(part, memo)
            copies.append(copy.deepcopy(part, memo))
        except Exception as error:
            what = f"{type(part).__name__} holds what drafts and batches cannot copy ({error})"
            raise CannotCopy(f"`{argument}`: {what}: give it a `clone()` method.") from error
    return copies


def _known(part, known: dict[int, Any]) -> dict[int, Any]:
    """What is reachable from `part` that copies share with it, or that copies itself, by its id: what a copy holds."""
    found, seen, todo = {}, set(known), [part]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, queue.Queue):  # whose copy would have no reader
            raise TypeError(f"{type(value).__name__}, which others read")
        if type(value).__module__ == "outlines_core" and type(value).__name__ == "Guide":
            raise TypeError("outlines-core's Guide, whose copies hold its whole index; `grammar=` drafts")
        copier = next((getattr(value, name) for name in COPIERS if hasattr(type(value), name)), None)
        if isinstance(value, SHARED):
            found[id(value)] = value
        elif copier is not None and not isinstance(value, ATOMS):
            found[id(value)] = copier()
        elif value is not part and _is_table(value):
            found[id(value)] = value
        elif not isinstance(value, ATOMS):
            todo += gc.get_referents(value)
    return found


def _is_table(value) -> bool:
    kind = type(value)
    return kind.__module__.split(".")[0] in ENGINES or kind.__name__ == "LLTokenizer"  # which calls itself a builtin


def check_apart(processors: list, criteria: list) -> None:
    """Refuse processors and criteria of the user that share what may change: no copy serves both.

    Processors run ahead of the text, criteria do not.

    Raises:
        CannotCopy: they share an object, a container or a tensor.
    """
    own = [[one for one in parts if not type(one).__module__.startswith("transformers.")] for parts in (processors, criteria)]
    if not all(own):
        return
    of_processors, of_criteria = ({id(value): value for value in _changeable(part)} for part in own)
    for key in of_processors.keys() & of_criteria.keys():
        shared = f"an object of type {type(of_criteria[key]).__name__}, of which no copy serves both"
        raise CannotCopy(f"`logits_processor` and `stopping_criteria` share {shared}: let each have its own.")


def _changeable(parts: list) -> list:
    """What is reachable from `parts` and may change."""
    found, seen, todo = [], set[int](), [*parts]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, UNCHANGED):
            continue
        seen.add(id(value))
        todo += gc.get_referents(value)
        has_attributes = getattr(value, "__dict__", None) or copyreg._slotnames(type(value))  # type: ignore[attr-defined]
        is_frozen = is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[union-attr]
        if isinstance(value, CHANGING) or (has_attributes and not is_frozen):
            found.append(value)
    return found


def check_alike(processors: list, batch_size: int) -> None:
    """A row's copy is shown that row in the place of all, which a processor with a grammar for each row does not take.

    Raises:
        CannotCopy: this is one.
    """
    for processor in processors:
        if batch_size > 1 and len(getattr(processor, "compiled_grammars", ())) > 1:
            name = type(processor).__name__
            raise CannotCopy(f"`logits_processor`: {name} holds a grammar for each row: give the list as `grammar=`.")
