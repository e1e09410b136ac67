"""Settings as dataclasses whose fields are a command's options: default, help and range are written once.

Below, those that commands share. Importing this imports nothing heavy.
"""

import dataclasses
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ..call.option_table import BITWISE, DRAFTING, ROWS, checked
from .checks import check_draft, check_model

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
        check: called with the option's name and each value of it when settings are made, before torch is imported.
    """

    help: str
    flags: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: Sequence[str] = ()
    panel: str | None = None
    is_argument: bool = False
    check: Callable[[str, Any], None] | None = None


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
    """Describe an option for typer; `kind` is what its value is read as, `MISSING` as a default asks for a value.

    What a command line calls it stands in the annotation as well.
    """
    flags = about.flags or ((f"--{name.replace('_', '-')}",) if default is False else ())
    help = f"{about.help} One of {', '.join(about.choices)}." if about.choices else about.help
    shown = {"help": help, "min": about.least, "max": about.most, "rich_help_panel": about.panel}
    told = typer.Argument(**shown) if about.is_argument else typer.Option(*flags, **shown)  # type: ignore[arg-type]
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    annotation: Any = Annotated[kind, told, _flag(name, about)]  # type: ignore[name-defined]
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
    """Settings, checked, and those that they hold, from the values of all options by name."""
    types, found = typing.get_type_hints(kind), {}
    for one in dataclasses.fields(kind):
        is_held = dataclasses.is_dataclass(types[one.name])
        found[one.name] = value = _made(types[one.name], values) if is_held else values[one.name]
        if (about := one.metadata.get(ABOUT)) is not None and about.check is not None and value is not None:
            for each in value if isinstance(value, list) else [value]:
                about.check(_flag(one.name, about), each)
    made = kind(**found)
    check_ranges(made)
    return made


def _flag(name: str, about: About) -> str:
    """What a command line calls an option."""
    return name.upper() if about.is_argument else next(iter(about.flags), f"--{name.replace('_', '-')}")


#: what `--dtype` takes: names in torch
DTYPES = ("float32", "bfloat16", "float16")
#: the heading of options about data sets
DATA = "Data"


def help_line(name: str, also: str | None = None) -> str:
    """What the table of options says about one, then what holds by default, or `also`."""
    option = ROWS[name]
    names = getattr(option.type, "names", ())
    parts = [option.help, f"One of {', '.join(names)}." if names else ""]
    parts.append(f"By default {option.default}." if also is None else also)
    return " ".join(filter(None, parts)).replace("`", "")


def option(name: str, *flags: str, default: Any = None, also: str | None = None, **about: Any) -> Any:
    """A field of settings that is an option of `generate`: help and range as in the table of options."""
    least = getattr(ROWS[name].type, "minimum", None)
    check = check_draft if name == "draft_model" else None
    return setting(default, help_line(name, also), *flags, least=least, check=check, **about)


def target_option(what: str, is_argument: bool = True) -> Any:
    """The field of settings that names the target, where the embedded pair is the default."""
    help = f"{what}: a Hub name or folder. Default: the embedded pair."
    return setting(None, help, is_argument=is_argument, check=check_model)


def with_drafting_options(*own: str, several: bool = False) -> Callable[[Callable], Callable]:
    """A command gets the table's options about drafting besides its own, and what is given of them, by name, as `drafting`.

    Args:
        own: options that the command has itself.
        several: sources of drafts may be given several times each, and come as lists; but for flags.
    """

    def given(values: dict[str, Any]) -> dict[str, Any]:
        found = {name: value for name, value in values.items() if value is not None}
        if found.pop(BITWISE, False):
            found["reproducible"] = BITWISE
        for name, value in found.items():
            for one in value if isinstance(value, list) else [value]:
                checked(name, one)
        return found

    names = [name for name in DRAFTING if ROWS[name].name == name and name not in own]
    options = [_drafting(name, several and ROWS[name].is_source) for name in names]
    help = "As --reproducible, bit for bit, in any number format: docs/bitwise.md."
    options.append(parameter(BITWISE, bool | None, None, About(help, ("--bitwise",), panel="Drafting")))
    return lambda command: with_options(command, options, "drafting", given)


def _drafting(name: str, several: bool) -> inspect.Parameter:
    kind: Any = ROWS[name].type.written_as
    several = several and kind is not bool
    help = help_line(name, "Repeat the option for several." if several else None)
    flag = name.replace("_", "-")
    # A flag stands alone, unless it has a word beside yes and no, which is the default.
    flags = (f"--{flag}" if getattr(ROWS[name].type, "word", None) is None else f"--{flag}/--no-{flag}",)
    about = About(help, flags, least=getattr(ROWS[name].type, "minimum", None), panel="Drafting")
    return parameter(name, list[kind] | None if several else kind | None, None, about)  # type: ignore[valid-type]


def raw_setting(panel: str | None = None) -> Any:
    """The field `raw` of settings: whether texts go through a chat template."""
    return setting(False, "Continue the prompt as it is, despite a chat template. Default: answer it.", panel=panel)


@dataclass(frozen=True)
class Machine:
    """Where the models of a command run, and in which number format."""

    dtype: str = setting("", "Number format of the weights; by default as the target's are stored.", choices=DTYPES)
    device: str = setting("", "Where to run: cpu, cuda, cuda:1, ... Default: cuda if there is one.")

    def place(self) -> str:
        """The device; of several processes each has its own.

        Raises:
            ValueError: this machine does not have it.
        """
        import torch

        try:
            torch.empty(0, device=self.device or None)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"--device {self.device}: {str(error).splitlines()[0]}") from error
        return self.device or (f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class ExactMachine(Machine):
    """The same, where texts are compared: in float32, if nothing else is said."""

    dtype: str = setting("float32", "Number format of the weights.", choices=DTYPES)


@dataclass(frozen=True)
class Reading:
    """Which rows of a data set are read, and how a prompt is made of one."""

    field: str = setting("prompt", "The column with the prompts: texts, or lists of chat messages.", panel=DATA)
    template: str | None = setting(None, "A Jinja template instead of --field: $'Q: {{ question }}\\nA:'.", panel=DATA)
    split: str | None = setting(None, "Which split of the data set. Needed if there are several.", panel=DATA)
    config: str | None = setting(None, "Which configuration on the Hub. Needed if there are several.", panel=DATA)
    limit: int | None = setting(None, "The number of rows to use, from the first.", least=1, panel=DATA)
    raw: bool = raw_setting(DATA)

    def __post_init__(self):
        if self.template is not None and self.field != "prompt":
            raise ValueError("--field and --template both say where prompts come from: give one.")

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of `hf_speculative.evaluate`."""
        prompt = self.field if self.template is None else self.template
        return {"prompt": prompt} | {name: getattr(self, name) for name in ("split", "config", "limit", "raw")}

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{one.name}" for one in fields(self) if getattr(self, one.name) != one.default]


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for terminals of any width. Indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
