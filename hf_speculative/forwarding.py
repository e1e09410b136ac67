"""Forward attributes of a wrapper to the wrapped part, and calls to several parts."""

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)


class Forwarded:
    """Reads an attribute of the part in the attribute `part`; what is set on the object itself comes first."""

    def __init__(self, part: str, name: str):
        self.part, self.name = part, name

    def __get__(self, instance: Any, kind: type) -> Any:
        return self if instance is None else getattr(getattr(instance, self.part), self.name)


class Handed(Forwarded):
    """One whose assignments go to the part as well."""

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(getattr(instance, self.part), self.name, value)


def to_each(parts: str, name: str) -> Callable[..., None]:
    """A method that calls the one of this `name` of each of the parts in the attribute `parts`."""

    def call(self: Any, *args) -> None:
        for part in getattr(self, parts):
            getattr(part, name)(*args)

    return call


def forwards_to(part: str, *handed: str) -> Callable[[Kind], Kind]:
    """A class whose public names are those of the part in its attribute `part`, but for what it defines itself.

    Args:
        handed: names that are set on the part, not on the object itself.
    """

    def forwarding(kind: Kind) -> Kind:
        for name in dir(kind):
            if not name.startswith("_") and name not in vars(kind):
                setattr(kind, name, (Handed if name in handed else Forwarded)(part, name))
        return kind

    return forwarding
