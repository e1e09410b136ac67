"""Forward attributes of a wrapper to the wrapped part."""

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)


class Forwarded:
    """Reads an attribute of the part in the attribute `part`; what is set on the object itself comes first."""

    def __init__(self, part: str, name: str):
        self.part, self.name = part, name

    def __get__(self, instance: Any, kind: type) -> Any:
        return self if instance is None else getattr(getattr(instance, self.part), self.name)


def forwards_to(part: str) -> Callable[[Kind], Kind]:
    """A class whose public names are those of the part in its attribute `part`, but for what it defines itself."""

    def forwarding(kind: Kind) -> Kind:
        for name in dir(kind):
            if not name.startswith("_") and name not in vars(kind):
                setattr(kind, name, Forwarded(part, name))
        return kind

    return forwarding
