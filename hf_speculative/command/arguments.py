"""Options that commands share. Importing this imports nothing heavy."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ..call.option_table import BITWISE, DRAFTING, ROWS, checked
from .settings import About, check_ranges, parameter, setting, with_options

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


#: help of the option of that name
GRAMMAR = "What the text has to be: a .json file with a JSON schema, a .lark file, or the text of a grammar."


def option(name: str, *flags: str, default: Any = None, also: str | None = None, **about: Any) -> Any:
    """A field of settings that is an option of `generate`: help and range as in the table of options."""
    least = getattr(ROWS[name].type, "minimum", None)
    return setting(default, help_line(name, also), *flags, least=least, **about)


def target_option(what: str, is_argument: bool = True) -> Any:
    """The field of settings that names the target, where the embedded pair is the default."""
    return setting(None, f"{what}: a Hub name or folder. Default: the embedded pair.", is_argument=is_argument)


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

    dtype: str = setting("", "Number format of the weights; by default as they are stored.", choices=DTYPES)
    device: str = setting("", "Where to run: cpu, cuda, cuda:1, ... Default: cuda if there is one.")

    def __post_init__(self):
        check_ranges(self)

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
        more = {name: getattr(self, name) for name in ("split", "config", "limit", "raw")}
        return {"prompt": prompt, **more}

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{one.name}" for one in fields(self) if getattr(self, one.name) != one.default]


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for terminals of any width. Indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
