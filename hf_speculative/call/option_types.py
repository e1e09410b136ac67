"""Types of options with their ranges: each value is checked here, once, and converted to Python's own type.

Importing this imports nothing heavy, since `--help` is made from it: classes are named, and looked up to check a value.
"""

import difflib
import numbers
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeAlias

from ..names import AND

#: the similarity (`difflib`) from which a name is taken for a misspelt one
CLOSE = 0.8
NO_DRAFTS = "drafts nothing: give 1 or more, or `draft_model=None` for plain decoding."


@dataclass(frozen=True)
class WholeNumber:
    """Any `numbers.Integral` except bool."""

    otherwise: str = NO_DRAFTS
    minimum: int = 1
    written_as: ClassVar[type] = int

    @property
    def text(self) -> str:
        return f"a whole number, {self.minimum} or more"

    def checked(self, name: str, value) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise wrong_type(name, value, self.text)
        if value < self.minimum:
            raise ValueError(f"`{name}={value}` {self.otherwise}")
        return int(value)


class Probability:
    """Any `numbers.Real` from 0 to 1, except bool."""

    text: ClassVar[str] = "a number from 0 to 1"
    written_as: ClassVar[type] = float

    def checked(self, name: str, value) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise wrong_type(name, value, self.text)
        if not 0 <= float(value) <= 1:  # nan is not, either
            raise ValueError(f"`{name}={value}` is a probability: give {self.text}.")
        return float(value)


@dataclass(frozen=True)
class Flag:
    """A bool or `numpy.bool_`, not 1 or 0; or a word, if there is one. A flag on a command line."""

    word: str | None = None
    written_as: ClassVar[type] = bool

    @property
    def text(self) -> str:
        return "True or False" if self.word is None else f"True or False, or {self.word!r}"

    def checked(self, name: str, value) -> bool | str:
        if isinstance(value, (bool, resolve_name("numpy:bool_"))):
            return bool(value)
        if self.word is None or not isinstance(value, str):
            raise wrong_type(name, value, self.text)
        if value != self.word:
            raise ValueError(f"`{name}={value!r}` is not known: give {self.text}.")
        return value


@dataclass(frozen=True)
class Instance:
    """An object of one of some classes, which are written `module:name`."""

    paths: tuple[str, ...]
    text: str
    written_as: ClassVar[None] = None

    @property
    def classes(self) -> tuple[type, ...]:
        return tuple(map(resolve_name, self.paths))

    def checked(self, name: str, value):
        if not isinstance(value, self.classes):
            raise wrong_type(name, value, self.text)
        return value


class Grammars:
    """One for all prompts, or a list with one for each; `grammar/compiled.py` says whether they are any."""

    text: ClassVar[str] = (
        "a JSON schema (a dict, its text, a pydantic model), a compiled regular expression, the text of a Lark grammar, or a "
        "file with a schema or grammar"
    )
    written_as: ClassVar[None] = None

    def checked(self, name: str, value):
        several = isinstance(value, (list, tuple))
        for one in value if several else [value]:
            if not isinstance(one, (dict, str, re.Pattern, os.PathLike)) and not hasattr(one, "model_json_schema"):
                raise wrong_type(name, one, f"{self.text}; other engines' processors go into `logits_processor`")
        if several and not value:
            raise ValueError(f"`{name}={value!r}` lists none: give {self.text}.")
        return value


class Streamer:
    """An object of any class that has the methods of a transformers streamer."""

    text: ClassVar[str] = "an object with the methods `put` and `end`, as a transformers streamer is"
    written_as: ClassVar[None] = None

    def checked(self, name: str, value):
        if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in ("put", "end")):
            raise wrong_type(name, value, self.text)
        return value


@dataclass(frozen=True)
class Name:
    """One of some names, of any where there are none; or an object, if so."""

    names: tuple[str, ...] = ()
    instance: Instance | None = None
    #: how to load objects that no name stands for
    otherwise: str = ""
    written_as: ClassVar[type] = str

    @property
    def text(self) -> str:
        texts = [repr(name) for name in self.names] + ([] if self.instance is None else [self.instance.text])
        return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)

    def checked(self, name: str, value):
        if not isinstance(value, str):
            if self.instance is None or not isinstance(value, self.instance.classes):
                raise wrong_type(name, value, self.text)
        elif self.names and value not in self.names:
            meant = close_to(value, self.names)
            way_out = f": did you mean {meant!r}?" if meant else f"{self.otherwise}."
            raise ValueError(f"`{name}={value!r}` is not one of {', '.join(self.names)}{way_out}")
        return value


@dataclass(frozen=True)
class Drafts:
    """What may draft: a model or its name, a drafter, names of methods that need no model, or a list of these.

    The value becomes a model, a name, a drafter, methods with `AND` between, or a pair of one of the former and methods. A name
    may have methods behind it: `./head+suffix`.

    Attributes:
        methods: names that stand for a method, in the order in which several are written.
        alone: those that do not go with others, and why.
        instance: the objects that draft.
    """

    methods: tuple[str, ...]
    alone: Mapping[str, str]
    instance: Instance
    written_as: ClassVar[type] = str

    @property
    def text(self) -> str:
        return f"{self.instance.text}, one of {', '.join(map(repr, self.methods))}, or a list of these"

    def is_method(self, value) -> bool:
        """Whether it names one method or several."""
        return isinstance(value, str) and set(value.split(AND)) <= {*self.methods}

    def split(self, value) -> tuple[Any, str | None]:
        """Of a checked value, the model or drafter and the methods; `None` for what it does not name."""
        if isinstance(value, tuple):
            return value
        return (None, value) if self.is_method(value) else (value, None)

    def checked(self, name: str, value):
        parts = [*value] if isinstance(value, (list, tuple)) else [value]
        methods: list[str] = []
        others = []
        for part in parts:
            if isinstance(part, str):
                words = part.split(AND)
                while words and words[-1] in self.methods:
                    methods.append(words.pop())
                part = AND.join(words)
            elif not isinstance(part, self.instance.classes):
                raise wrong_type(name, part, self.text)
            others += [] if part == "" and methods else [part]
        if not parts:
            raise ValueError(f"`{name}={value!r}` names nothing: give {self.text}.")
        if len(others) > 1:
            raise ValueError(f"`{name}` lists {len(others)} models or drafters: give one, and methods beside it.")
        for one in methods:
            if methods.count(one) > 1:
                raise ValueError(f"`{name}={value!r}` names {one!r} twice: once will do.")
            if len(methods) > 1 and one in self.alone:
                raise ValueError(f"`{name}={value!r}`: {one!r} {self.alone[one]}.")
        joined = AND.join(one for one in self.methods if one in methods)
        if not others:
            return joined
        return (others[0], joined) if methods else others[0]


#: the type of an option's values: `text` is what to give, as in "give a whole number, 1 or more"; `written_as` its Python type
#: in files and on command lines, `None` if it has none; `checked(name, value)` returns the value as Python's own type
#: (TypeError: it is of another type; ValueError: it is out of range)
Kind: TypeAlias = WholeNumber | Probability | Flag | Instance | Grammars | Streamer | Name | Drafts


def shown(name: str, value) -> str:
    """An option as a message names it: with its value, unless that is an object whose text may be long."""
    return f"`{name}={value!r}`" if isinstance(value, (bool, numbers.Number, str)) else f"`{name}`"


def wrong_type(name: str, value, text: str) -> TypeError:
    return TypeError(f"{shown(name, value)} is of type {type(value).__name__}: give {text}.")


def close_to(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` probably misspells; `None` if it resembles none."""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=CLOSE)), None)
