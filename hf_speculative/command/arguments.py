"""Options that commands share: checking, loading, explaining them. Importing this imports nothing heavy."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..call.option_table import DRAFTING, DRAFTS, ROWS, checked
from ..names import EXAMPLES, check_name, place_of
from ..reports.files import check_output

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")
#: how files of prompts are called
DATA_FILES = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".gz", ".arrow")
#: what `--dtype` takes: names in torch
DTYPES = ("float32", "bfloat16", "float16")


def help_line(name: str, also: str | None = None) -> str:
    """What the table of options says about one, then what holds by default, or `also`."""
    option = ROWS[name]
    names = getattr(option.type, "names", ())
    parts = [option.help, f"One of {', '.join(names)}." if names else ""]
    parts.append(f"By default {option.default}." if also is None else also)
    return " ".join(filter(None, parts)).replace("`", "")


def from_table(name: str, *flags: str, also: str | None = None, panel: str | None = None):
    """An option of `generate` as one of a command: help and range as in the table of options."""
    least = getattr(ROWS[name].type, "minimum", None)
    return typer.Option(*flags, help=help_line(name, also), min=least, rich_help_panel=panel)


def with_drafting_options(*own: str, several: bool = False) -> Callable[[Callable], Callable]:
    """A command gets the table's options about drafting besides its own, and what is given of them, by name, as `drafting`.

    Args:
        own: options that the command has itself.
        several: sources of drafts may be given several times each, and come as lists; but for flags.
    """
    names = [name for name in DRAFTING if ROWS[name].name == name and name not in own]

    def add(command: Callable) -> Callable:
        @functools.wraps(command)
        def run(**values):
            given = {name: value for name in names if (value := values.pop(name)) is not None}
            for name, value in given.items():
                for one in value if isinstance(value, list) else [value]:
                    checked(name, one)
            return command(**values, drafting=given)

        signature = inspect.signature(command, eval_str=True)
        parameters = [one for one in signature.parameters.values() if one.name != "drafting"]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *(_parameter(name, several and ROWS[name].is_source) for name in names)]
        )
        return run

    return add


def _parameter(name: str, several: bool) -> inspect.Parameter:
    kind: Any = ROWS[name].type.written_as
    several = several and kind is not bool
    flag = f"--{name.replace('_', '-')}"  # alone, without its --no- for a flag
    option = from_table(name, flag, panel="Drafting", also="Repeat the option for several." if several else None)
    annotation = Annotated[list[kind] | None if several else kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def check_dtype(dtype: str) -> None:
    """Raises a ValueError for a dtype that is none of `DTYPES`; empty is the default."""
    if dtype and dtype not in DTYPES:
        raise ValueError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}.")


def check_device(device: str) -> None:
    """Raises if this machine does not have `device`; empty is any.

    Raises:
        ValueError: torch knows no such device, or finds none.
    """
    import torch

    try:
        torch.empty(0, device=device or None)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error


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


def load_named(option: str, name: str, dtype: str, device: str) -> PreTrainedModel:
    """The model that an option names; `dtype` as its weights are stored, if empty."""
    import torch

    from ..models.loading import load_model

    with naming(option, name):
        return load_model(loadable(name), dtype=getattr(torch, dtype) if dtype else "auto").to(device)


def load_draft_named(option: str, name: str, dtype: str, device: str) -> Any:
    """What `--draft-model` names, as `generate` takes it: a model, methods that need none, or both."""
    draft, methods = DRAFTS.split(checked("draft_model", name))
    if draft is None:
        return methods
    model = _tables(option, draft) or load_named(option, draft, dtype, device)
    return model if methods is None else (model, methods)


def _tables(option: str, name: str) -> Any:
    """The source of drafts by the tables in a folder; `None` where it holds none."""
    from ..drafting.tables import Tables, TablesSource, holds_tables

    place = Path(place_of(name))
    with naming(option, name):
        return TablesSource(Tables.load(place)) if holds_tables(place) else None


def load_target(option: str, name: str, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The same with its tokenizer."""
    from transformers import AutoTokenizer

    target = load_named(option, name, dtype, device)
    with naming(option, name):
        return target, AutoTokenizer.from_pretrained(loadable(name), trust_remote_code=False)


def load_pair(
    model: str | None,
    draft_model: str | None,
    dtype: str,
    device: str,
    options: tuple[str, str] = ("--model", "--draft-model"),
    needs_draft: bool = True,
    head: bool = False,
) -> tuple[PreTrainedModel, Any, PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]:
    """What `--model`, `--draft-model`, `--dtype` and `--device` name; without models, the embedded pair.

    Args:
        options: what the command calls the first two.
        needs_draft: a target alone is not enough.
        head: of the embedded pair, the draft head instead of the draft model.

    Returns:
        The target; the draft, as `load_draft_named` gives it; the target's tokenizer; the draft's, where it differs.

    Raises:
        ValueError: one model without the other, one that cannot be loaded, or a device that is not there.
    """
    import torch
    from transformers import PreTrainedModel

    from ..embedded import embedded_pair
    from ..tokenizers.loading import tokenizer_of_draft

    named, methods = (None, None) if draft_model is None else DRAFTS.split(checked("draft_model", draft_model))
    if (model is None) != (named is None) and (needs_draft or model is None) and methods is None:
        raise ValueError("--model and --draft-model go together: give both, or none for the embedded pair.")
    check_device(device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if model is None:
        target, draft, tokenizer = embedded_pair(getattr(torch, dtype or "float32"), head)
        return target.to(device), methods or draft.to(device), tokenizer, None
    target, tokenizer = load_target(options[0], model, dtype, device)
    if draft_model is None:
        return target, None, tokenizer, None
    draft = load_draft_named(options[1], draft_model, dtype, device)
    has_own = isinstance(draft[0] if isinstance(draft, tuple) else draft, PreTrainedModel)
    other = tokenizer_of_draft(loadable(str(named)), tokenizer) if has_own else None
    return target, draft, tokenizer, other


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for terminals of any width. Indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
