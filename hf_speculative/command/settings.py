"""Settings as dataclasses whose fields are a command's options: default, help and range are written once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    panel: str | None = None,
    flag: str | None = None,
) -> Any:
    """A field of a dataclass of settings.

    Args:
        help: what it means, for `--help` and the docs.
        least, most: the ends of its range.
        above: the end of its range that does not belong to it.
        panel: a heading among the options.
        flag: the option, where it is not called as the field.
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help, "least": least, "most": most, "above": above, "panel": panel, "flag": flag},
    )


def check_ranges(settings: Any) -> None:
    """Refuse fields out of their range; called in `__post_init__`.

    Raises:
        ValueError: the name, the value, the range.
    """
    for field in dataclasses.fields(settings):
        value, range = getattr(settings, field.name), field.metadata
        if value is None or "help" not in range:
            continue
        least, most, above = range["least"], range["most"], range["above"]
        if least is not None and not value >= least:
            raise ValueError(f"`{field.name}={value}`: give {least:g} or more.")
        if above is not None and not value > above:
            raise ValueError(f"`{field.name}={value}`: give more than {above:g}.")
        if most is not None and not value <= most:
            raise ValueError(f"`{field.name}={value}`: give at most {most:g}.")


def with_settings(kind: type) -> Callable[[Callable], Callable]:
    """Give a command the fields of the dataclass `kind` as options, and what they come to as `settings`."""
    names = [one.name for one in _fields(kind)]

    def add(command: Callable) -> Callable:
        @functools.wraps(command)
        def run(**values):
            settings = _made(kind, {name: values.pop(name) for name in names})
            return command(**values, settings=settings)

        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "settings"]
        run.__signature__ = signature.replace(parameters=[*own, *map(_parameter, _fields(kind))])  # type: ignore[attr-defined]
        return run

    return add


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    type: Any
    default: Any
    range: typing.Mapping[str, Any]


def _fields(kind: type) -> list[_Field]:
    """The fields of settings, and of settings that they hold."""
    types, found = typing.get_type_hints(kind), []
    for one in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[one.name]):
            found += _fields(types[one.name])
        elif "help" in one.metadata:
            found.append(_Field(one.name, types[one.name], one.default, one.metadata))
    return found


def _made(kind: type, values: dict[str, Any]) -> Any:
    types = typing.get_type_hints(kind)
    inner: dict[str, Any] = {name: type for name, type in types.items() if dataclasses.is_dataclass(type)}
    own = {name: value for name, value in values.items() if name in types}
    return kind(**own, **{name: _made(type, {n: values[n] for n in _names(type)}) for name, type in inner.items()})


def _names(kind: type) -> list[str]:
    return [one.name for one in _fields(kind)]


def _parameter(field: _Field) -> inspect.Parameter:
    flags = [] if field.range["flag"] is None else [field.range["flag"]]
    least, most = field.range["least"], field.range["most"]
    option = typer.Option(*flags, help=field.range["help"], min=least, max=most, rich_help_panel=field.range["panel"])
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=field.default, annotation=Annotated[field.type, option])
