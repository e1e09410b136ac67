"""Options that commands share: checking, loading, explaining them. Importing this imports nothing heavy."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..call.option_table import BITWISE, DRAFTING, DRAFTS, ROWS, checked
from ..names import EXAMPLES, check_name, place_of
from ..reports.files import check_output
from .settings import About, check_ranges, parameter, setting, with_options

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")
#: how files of prompts are called
DATA_FILES = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".gz", ".arrow")
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
    flags = (f"--{name.replace('_', '-')}",)  # alone, without its --no- for a flag
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
    split: str | None = setting(
        None, "Which split of the data set, such as test. Needed if there are several.", panel=DATA
    )
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


def check_outputs(**paths: Path | None) -> None:
    """Raises if a file cannot be written where an option says, so that a typo does not cost what was measured."""
    for option, path in paths.items():
        if path is not None:
            check_output(f"--{option}", path)


def check_models(**names: str | list[str] | None) -> None:
    """Refuse, before torch is imported, names of models that are no folders and no repositories."""
    for option, value in names.items():
        for name in value if isinstance(value, list) else [value]:
            if name is not None:
                shown = option if option.isupper() else f"--{option.replace('_', '-')}"
                model = DRAFTS.split(checked("draft_model", name))[0] if option == "draft_model" else name
                with naming(shown, name):
                    if model is not None:
                        check_name(place_of(model))


def check_file(option: str, path: str | Path | None) -> None:
    """Refuse, before torch is imported, a file that is not there."""
    if path is not None and not Path(path).exists():
        raise ValueError(f"{option} {path}: there is no such file.")


def check_data(option: str, name: str) -> None:
    """Refuse, before torch is imported, a data set that is named like a file where there is none; others may be on the Hub."""
    path = Path(name)
    if path.is_absolute() or name.startswith((".", "~")) or path.suffix.lower() in DATA_FILES:
        check_file(option, path)


def numbers(option: str, text: str, kind: Callable[[str], T], also: str = "") -> list[T]:
    """A list written with commas; `also` is what a number may be besides."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} {text}: give a number{also}, or several with commas between them.") from error


@contextmanager
def naming(option: str, name: str) -> Iterator[None]:
    """An error of loading names the option that asked for it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{option} {name} cannot be loaded. {error}") from error


def loadable(name: str) -> str:
    """The folder or repository that a name stands for: of an embedded model, of an example, or itself."""
    if name not in EXAMPLES or Path(name).exists():
        return place_of(name)
    from ..embedded.examples import place_of_example

    return place_of_example(name)


def load_named(option: str, name: str, machine: Machine) -> "PreTrainedModel":
    """The model that an option names."""
    import torch

    from ..models.loading import load_model

    with naming(option, name):
        dtype = getattr(torch, machine.dtype) if machine.dtype else "auto"
        return load_model(loadable(name), dtype=dtype).to(machine.place())


def load_embedded(
    machine: Machine, head: bool = False
) -> "tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]":
    """The embedded target, its draft model or draft head, and their tokenizer."""
    import torch

    from ..embedded import embedded_pair

    place = machine.place()
    target, draft, tokenizer = embedded_pair(getattr(torch, machine.dtype or "float32"), head)
    return target.to(place), draft.to(place), tokenizer


def _tables(option: str, name: str) -> Any:
    """The source of drafts by the tables in a folder; `None` where it holds none."""
    from ..drafting.tables import Tables, TablesSource, holds_tables

    place = Path(place_of(name))
    with naming(option, name):
        return TablesSource(Tables.load(place)) if holds_tables(place) else None


def load_target(option: str, name: str, machine: Machine) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The same with its tokenizer."""
    from transformers import AutoTokenizer

    target = load_named(option, name, machine)
    with naming(option, name):
        return target, AutoTokenizer.from_pretrained(loadable(name), trust_remote_code=False)


def load_pair(
    model: str | None,
    draft_model: str | None,
    machine: Machine,
    options: tuple[str, str] = ("MODEL", "--draft-model"),
    needs_draft: bool = False,
    head: bool = False,
) -> "tuple[PreTrainedModel, Any, PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]":
    """What the options of a command for two models name; without models, the embedded pair.

    Args:
        options: what the command calls the first two.
        needs_draft: a target alone is not enough.
        head: of the embedded pair, the draft head instead of the draft model.

    Returns:
        The target; the draft as `generate` takes it, a model, methods that need none, or both; the target's tokenizer; the
        draft's, where it differs.

    Raises:
        ValueError: one model without the other, one that cannot be loaded, or a device that is not there.
    """
    from transformers import PreTrainedModel

    from ..tokenizers.loading import tokenizer_of_draft

    named, methods = (None, None) if draft_model is None else DRAFTS.split(checked("draft_model", draft_model))
    if (model is None) != (named is None) and (needs_draft or model is None) and methods is None:
        raise ValueError(f"{' and '.join(options)} go together: give both, or none for the embedded pair.")
    if model is None:
        target, draft, tokenizer = load_embedded(machine, head)
        return target, methods or draft, tokenizer, None
    target, tokenizer = load_target(options[0], model, machine)
    if named is None:
        return target, methods, tokenizer, None
    draft = _tables(options[1], named) or load_named(options[1], named, machine)
    other = tokenizer_of_draft(loadable(named), tokenizer) if isinstance(draft, PreTrainedModel) else None
    return target, draft if methods is None else (draft, methods), tokenizer, other


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for terminals of any width. Indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
