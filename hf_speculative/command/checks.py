"""Check what options name, before torch is imported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..call.option_table import DRAFTS, checked
from ..names import check_name, place_of
from ..reports.files import check_output

T = TypeVar("T")
#: how files of prompts are called
DATA_FILES = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".gz", ".arrow")


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
