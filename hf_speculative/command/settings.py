"""Settings as dataclasses whose fields are a command's options: default, help and range are written once."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

ABOUT = "about"


@dataclasses.dataclass(frozen=True)
class About:
    """What a field of settings says of itself as an option.

    Attributes:
        help: what it means, for `--help` and the docs.
        flags: the options, where they are not called as the field.
        least, most: the ends of its range.
        above: the end of its range that does not belong to it.
        choices: the texts that it may be, besides its default.
        panel: a heading among the options.
        is_argument: it is given by its place, without a name.
    """

    help: str
    flags: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: Sequence[str] = ()
    panel: str | None = None
    is_argument: bool = False


def setting(default: Any, help: str, *flags: str, **about: Any) -> Any:
    """A field of a dataclass of settings; `...` in the place of a default asks for a value. See `About` for the rest."""
    default = dataclasses.MISSING if default is ... else default
    return dataclasses.field(default=default, metadata={ABOUT: About(help, flags, **about)})


def check_ranges(settings: Any) -> None:
    """Refuse fields out of their range; called in `__post_init__`.

    Raises:
        ValueError: the name, the value, the range.
    """
    for field in dataclasses.fields(settings):
        value, about = getattr(settings, field.name), field.metadata.get(ABOUT)
        if value is None or about is None or value == field.default:
            continue
        if about.choices and value not in about.choices:
            raise ValueError(f"`{field.name}={value!r}`: choose one of {', '.join(about.choices)}.")
        if not isinstance(value, (int, float)):  # a list of numbers, written as a text, is read later
            continue
        if about.least is not None and not value >= about.least:
            raise ValueError(f"`{field.name}={value}`: give {about.least:g} or more.")
        if about.above is not None and not value > about.above:
            raise ValueError(f"`{field.name}={value}`: give more than {about.above:g}.")
        if about.most is not None and not value <= about.most:
            raise ValueError(f"`{field.name}={value}`: give at most {about.most:g}.")


def parameter(name: str, kind: Any, default: Any, about: About) -> inspect.Parameter:
    """Describe an option for typer; `kind` is what its value is read as, `MISSING` as a default asks for a value."""
    flags = about.flags or ((f"--{name.replace('_', '-')}",) if default is False else ())
    help = f"{about.help} One of {', '.join(about.choices)}." if about.choices else about.help
    shown = {"help": help, "min": about.least, "max": about.most, "rich_help_panel": about.panel}
    told = typer.Argument(**shown) if about.is_argument else typer.Option(*flags, **shown)  # type: ignore[arg-type]
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    annotation: Any = Annotated[kind, told]  # type: ignore[name-defined]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_options(
    command: Callable, options: Sequence[inspect.Parameter], made: str, make: Callable[[dict[str, Any]], Any]
) -> Callable:
    """A command that gets `options`, and what `make` makes of their values, by name, as its keyword `made`."""

    @functools.wraps(command)
    def run(**values):
        values[made] = make({option.name: values.pop(option.name) for option in options})
        return command(**values)

    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != made]
    run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return run


def with_settings(kind: type) -> Callable[[Callable], Callable]:
    """Give a command the fields of the dataclass `kind` as options, and what they come to as `settings`."""
    return lambda command: with_options(command, _options(kind), "settings", functools.partial(_made, kind))


def _options(kind: Any) -> list[inspect.Parameter]:
    """The fields of settings, and of settings that they hold."""
    types, found = typing.get_type_hints(kind), []
    for one in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[one.name]):
            found += _options(types[one.name])
        else:
            found.append(parameter(one.name, types[one.name], one.default, one.metadata[ABOUT]))
    return found


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """Settings, and those that they hold, from the values of all options by name."""
    types, found = typing.get_type_hints(kind), {}
    for one in dataclasses.fields(kind):
        is_held = dataclasses.is_dataclass(types[one.name])
        found[one.name] = _made(types[one.name], values) if is_held else values[one.name]
    return kind(**found)
