"""Check what options name, before torch is imported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..call.option_table import DRAFTS, checked
from ..names import check_name, place_of

T = TypeVar("T")
#: how files of prompts are called
DATA_FILES = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".gz", ".arrow")


def check_model(option: str, name: str) -> None:
    """Refuse, before torch is imported, the name of a model that is no folder and no repository."""
    with naming(option, name):
        check_name(place_of(name))


def check_draft(option: str, name: str) -> None:
    """The same of what may draft, methods among it."""
    model, _ = DRAFTS.split(checked("draft_model", name))
    if model is not None:
        check_model(option, model)


def check_file(option: str, path: str | Path) -> None:
    """Refuse, before torch is imported, a file that is not there."""
    if not Path(path).exists():
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
