"""From a data set to prompts: a `datasets` data set, a name on the Hub, or a file. Broken rows are recorded and skipped."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .journal import BadRow

#: builders of `datasets` for files, by ending; lines of text and JSON are read here, so that one broken line is only that
BUILDERS = {".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
BY_LINES = (".txt", ".jsonl")
#: what a line of text becomes, and the column that prompts come from by default
DEFAULT_FIELD = "prompt"

#: how a row becomes a prompt: a column's name, a Jinja template over the columns, or a function of the row
Reader = str | Callable[[Mapping[str, Any]], Any]


def read_rows(
    dataset, *, split: str | None = None, config: str | None = None, limit: int | None = None
) -> list[Mapping[str, Any] | BadRow]:
    """The rows of a data set; a line that cannot be read becomes a `BadRow`.

    Args:
        dataset: a `datasets` data set, a list of rows or of texts, a file, a folder that `save_to_disk` wrote, or a name on the
            Hub. Files end in .txt, .jsonl (both also as .gz), .json, .csv, .tsv or .parquet.
        split, config: which one, if the data set has several.
        limit: the number of rows to use, from the first.

    Raises:
        ValueError, TypeError: `dataset` is none of these, or has several splits and none is named.
    """
    if isinstance(dataset, (str, Path)):
        dataset, split = _open(str(dataset), split, config)
    elif config is not None:
        raise ValueError(f"`config={config!r}` chooses within a data set on the Hub: leave it out.")
    dataset = _one_split(dataset, split)
    if hasattr(dataset, "iterrows"):  # iterating over a DataFrame gives the names of its columns
        raise TypeError("`dataset` is a DataFrame: pass `datasets.Dataset.from_pandas(frame)`.")
    if isinstance(dataset, Mapping) or not isinstance(dataset, Iterable):
        raise TypeError(f"`dataset` is of type {type(dataset).__name__}: pass a datasets.Dataset, rows or a file.")
    rows = [_row(row, index) for index, row in enumerate(islice(dataset, limit))]
    if not rows:
        raise ValueError(f"`dataset` has no rows{'' if limit is None else f' within limit={limit}'}.")
    return rows


def _open(name: str, split: str | None, config: str | None):
    """The data, and the split that is still to be taken of it."""
    from datasets import load_dataset, load_from_disk  # a second of imports

    path = Path(name)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    ending = next((s for s in reversed(suffixes) if s in BUILDERS or s in BY_LINES), None)
    is_saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
    if config is not None and (path.is_file() or is_saved):
        raise ValueError(f"`config={config!r}` chooses within a data set on the Hub, and {name} is here: leave it out.")
    if path.is_file():
        if ending in BY_LINES:
            return _lines(path, is_json=ending == ".jsonl"), split
        if ending is None:
            endings = ", ".join((*BY_LINES, *BUILDERS))
            raise ValueError(f"{name}: a file that ends in one of {endings} is needed (.txt and .jsonl also with .gz).")
        options = {"sep": "\t"} if ending == ".tsv" else {}
        return load_dataset(BUILDERS[ending], data_files=name, split="train", **options), split
    if is_saved:
        return load_from_disk(name), split
    if ending is not None:
        raise ValueError(f"{name}: no such file.")
    return load_dataset(name, config, split=split), None


def _lines(path: Path, is_json: bool) -> Iterator[Mapping[str, Any] | str | BadRow]:
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as file:
        lines = ((number, line) for number, line in enumerate(_whole(file, path), start=1) if line.strip())
        for index, (number, line) in enumerate(lines):
            try:
                text = line.decode("utf-8-sig" if index == 0 else "utf-8").rstrip("\r\n")
                yield json.loads(text) if is_json else text
            except json.JSONDecodeError as error:
                yield BadRow(index, f"line {number} is no JSON: {error.msg} at column {error.colno}")
            except UnicodeDecodeError as error:
                yield BadRow(index, f"line {number} is no UTF-8: {error}")


def _whole(file: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is cut off or broken: {error}") from error


def _one_split(dataset, split: str | None):
    if not isinstance(dataset, dict) or type(dataset) is dict:  # DatasetDict and its kin
        if split is not None:
            raise ValueError(f"`split={split!r}` chooses among several, and the data set has none: leave it out.")
        return dataset
    if split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        raise ValueError(f"`split={split!r}` is not one of the data set's, {', '.join(map(str, dataset))}: name one.")
    return dataset[split]


def _row(row, index: int) -> Mapping[str, Any] | BadRow:
    if isinstance(row, (Mapping, BadRow)):
        return row
    if isinstance(row, str):
        return {DEFAULT_FIELD: row}
    return BadRow(index, f"of type {type(row).__name__}, neither a text nor columns with names")


def reader(how: Reader | None, rows: list, option: str = "prompt") -> Callable[[Mapping[str, Any]], Any]:
    """A function that reads from a row what `how` names.

    That function raises ValueError if a row lacks it.

    Raises:
        ValueError: no row has it, or the template is not valid.
    """
    how = DEFAULT_FIELD if how is None else how
    if not isinstance(how, str):
        return how
    if "{{" in how or "{%" in how:
        return _template(how, option)
    columns = list(dict.fromkeys(name for row in rows if not isinstance(row, BadRow) for name in map(str, row)))
    if columns and how not in columns:
        raise ValueError(f"`{option}={how!r}` is no column of the data set, which has {', '.join(columns)}: name one.")

    def column(row: Mapping[str, Any]):
        if row.get(how) is None:
            raise ValueError(f"no {how!r}")
        return row[how]

    return column


#: a text, or messages for a chat template
Prompt = str | list[dict[str, Any]]


def read_prompts(dataset, field: str = DEFAULT_FIELD) -> list[Prompt | BadRow]:
    """The texts or messages in a column of a data set or file; a row without one becomes a `BadRow`.

    Raises:
        ValueError: no row has one.
    """
    rows = read_rows(dataset)
    read = reader(field, rows, "field")

    def prompt(row, index: int) -> Prompt | BadRow:
        if isinstance(row, BadRow):
            return row
        try:
            value = read(row)
        except ValueError as error:
            return BadRow(index, str(error))
        are_messages = isinstance(value, list) and all(isinstance(one, dict) and "content" in one for one in value)
        is_prompt = bool(value) and (isinstance(value, str) or are_messages)
        return value if is_prompt else BadRow(index, f"{value!r} is neither a text nor messages")

    prompts = [prompt(row, index) for index, row in enumerate(rows)]
    bad = [one for one in prompts if isinstance(one, BadRow)]
    if len(bad) == len(prompts):
        raise ValueError(f"no row of {dataset} can be used; row 0: {bad[0].message}.")
    return prompts


def _template(source: str, option: str) -> Callable[[Mapping[str, Any]], str]:
    # As transformers renders chat templates, but a name that is not there is an error.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"`{option}` is no Jinja template: {str(error).rstrip('.')}.") from error

    def render(row: Mapping[str, Any]) -> str:
        try:
            return template.render(**row)
        except TemplateError as error:
            raise ValueError(f"the template of `{option}` fails: {error}") from error

    return render
