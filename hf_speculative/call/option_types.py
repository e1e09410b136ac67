"""Types of options with their ranges: a value is checked once, here, and becomes one of Python's own.

Importing this imports nothing heavy, for `--help` is made from it: classes are named, and looked up when there is a value.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol

from ..names import AND

#: so like another a name has to be that it is taken for a slip (`difflib`)
CLOSE = 0.8
NO_DRAFTS = "drafts nothing: give 1 or more, or `draft_model=None` for plain decoding."


class OptionType(Protocol):
    @property
    def text(self) -> str:
        """What to give, as in "give a whole number, 1 or more"."""

    @property
    def written_as(self) -> type | None:
        """As which of Python's types it is written in a file or on a command line; `None` if it cannot be."""

    def checked(self, name: str, value) -> Any:
        """The value of the option `name`, as Python's own type.

        Raises:
            TypeError: it is of another type.
            ValueError: it is out of range.
        """


@dataclass(frozen=True)
class WholeNumber:
    """Numpy's integers are, True is not."""

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


def _real(name: str, value, text: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_type(name, value, text)
    return float(value)


@dataclass(frozen=True)
class Probability:
    """From 0 to 1, which nan is not."""

    text: ClassVar[str] = "a number from 0 to 1"
    written_as: ClassVar[type] = float

    def checked(self, name: str, value) -> float:
        number = _real(name, value, self.text)
        if not 0 <= number <= 1:
            raise ValueError(f"`{name}={value}` is a probability: give {self.text}.")
        return number


@dataclass(frozen=True)
class PositiveNumber:
    """Infinity is one."""

    text: ClassVar[str] = "a number above 0"
    written_as: ClassVar[type] = float

    def checked(self, name: str, value) -> float:
        number = _real(name, value, self.text)
        if not number > 0:
            raise ValueError(f"`{name}={value}` drafts nothing: give {self.text}.")
        return number


@dataclass(frozen=True)
class Flag:
    """Numpy's truth values are, 1 and 0 are not."""

    text: ClassVar[str] = "True or False"
    written_as: ClassVar[type] = bool

    def checked(self, name: str, value) -> bool:
        if not isinstance(value, (bool, resolve_name("numpy:bool_"))):
            raise wrong_type(name, value, self.text)
        return bool(value)


@dataclass(frozen=True)
class FlagOr:
    """True, False, or a word; on a command line a flag."""

    word: str
    written_as: ClassVar[type] = bool

    @property
    def text(self) -> str:
        return f"{Flag.text}, or {self.word!r}"

    def checked(self, name: str, value) -> bool | str:
        if isinstance(value, str):
            if value != self.word:
                raise ValueError(f"`{name}={value!r}` is not known: give {self.text}.")
            return value
        if not isinstance(value, (bool, resolve_name("numpy:bool_"))):
            raise wrong_type(name, value, self.text)
        return bool(value)


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


@dataclass(frozen=True)
class HasMethods:
    """An object of any class that has these methods."""

    methods: tuple[str, ...]
    text: str
    written_as: ClassVar[None] = None

    def checked(self, name: str, value):
        if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in self.methods):
            raise wrong_type(name, value, self.text)
        return value


@dataclass(frozen=True)
class Name:
    """One of some names, of any where there are none; or an object, if so."""

    names: tuple[str, ...] = ()
    instance: Instance | None = None
    #: how to get what no name stands for
    otherwise: str = ""
    written_as: ClassVar[type] = str

    @property
    def text(self) -> str:
        texts = [*map(repr, self.names), *([] if self.instance is None else [self.instance.text])]
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
class Names:
    """One of some names, or several of them; either becomes a string, the names in the order of `names` and `AND` between.

    Attributes:
        alone: those that do not go with others, and why.
    """

    names: tuple[str, ...]
    alone: Mapping[str, str]
    written_as: ClassVar[type] = str

    @property
    def text(self) -> str:
        return f"{Name(self.names).text}, or a list of these"

    def checked(self, name: str, value) -> str:
        given = value.split(AND) if isinstance(value, str) else value
        if not isinstance(given, (list, tuple)):
            raise wrong_type(name, value, self.text)
        for one in given:
            Name(self.names).checked(name, one)
            if given.count(one) > 1:
                raise ValueError(f"`{name}={value!r}` names {one!r} twice: once will do.")
            if len(given) > 1 and one in self.alone:
                raise ValueError(f"`{name}={value!r}`: {one!r} {self.alone[one]}.")
        if not given:
            raise ValueError(f"`{name}={value!r}` names nothing: give {self.text}.")
        return AND.join(one for one in self.names if one in given)


def shown(name: str, value) -> str:
    """An option as a message names it: with its value, unless that is an object whose text may be long."""
    return f"`{name}={value!r}`" if isinstance(value, (bool, numbers.Number, str)) else f"`{name}`"


def wrong_type(name: str, value, text: str) -> TypeError:
    return TypeError(f"{shown(name, value)} is of type {type(value).__name__}: give {text}.")


def close_to(name: str, names: Iterable[str]) -> str | None:
    """What `name` is a slip of, if it is like one of `names`."""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=CLOSE)), None)
