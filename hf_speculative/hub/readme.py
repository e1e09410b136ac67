"""Edit a model card without losing what is there: the text, byte for byte, and every key and value of the metadata block.

The block is written as `huggingface_hub.metadata_save` writes it. `huggingface_hub.ModelCard` would drop empty keys, and what a
`model-index` holds beyond its `EvalResult`.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump
from jinja2 import StrictUndefined
from markupsafe import Markup

from ..reports.pages import templates, visible


def render(template: str, **values: Any) -> str:
    """A template of the package, `hub/card.md`, filled in. Text that is no `Markup` is shown as it is, whatever Markdown would
    make of it."""
    environment = templates().overlay(
        autoescape=False,
        undefined=StrictUndefined,
        finalize=lambda value: escaped(value) if type(value) is str else value,
    )
    own = {"code": code, "fenced": fenced, "repr": lambda value: Markup(repr(value))}
    environment.filters = environment.filters | own  # what is changed in place is shared
    return environment.get_template(template).render(values).strip()


def escaped(text: str) -> str:
    """Text in a line or a cell: no tag, code, emphasis, link, cell or item of its own."""
    text = " ".join(visible(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`*_\[\]>|~#])", r"\\\1", text)
    return re.sub(r"^(\d*)([-+=.)])(?=[\s=-]|$)", r"\1\\\2", text)


def code(text: str) -> Markup:
    """Code in a line, between more backticks than it holds."""
    text = " ".join(visible(text).split())
    ticks = "`" * (_longest_ticks(text) + 1)
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return Markup(f"{ticks}{space}{text}{space}{ticks}")


def fenced(text: str, language: str) -> Markup:
    """A block of code, which no line of it can end."""
    ticks = "`" * max(3, _longest_ticks(text) + 1)
    return Markup(f"{ticks}{language}\n{visible(text)}\n{ticks}")


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def edit(text: str, section: str, title: str, body: str, metadata: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The card `text` with one section of ours, added at its end or put in the place of the same section of an earlier run.

    Args:
        text: a whole README.md, its metadata block included; empty for a new one.
        section: name of the section, by which it is found again.
        title: heading of a new card.
        body: Markdown of the section.
        metadata: from what the metadata block holds to the keys to set in it.

    Raises:
        ValueError: the card cannot be read, or would not be one that huggingface_hub can read.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    newline = "\r\n" if "\r\n" in text and "\n" not in text.replace("\r\n", "") else "\n"
    block, rest = _split(text.replace(newline, "\n"))
    existing = _parsed(block)
    if existing:
        ModelCard(f"---\n{block}---\n")  # what is broken already is said before anything is added
    if (changed := existing | metadata(existing)) != existing:
        block = yaml_dump(changed, sort_keys=False)
    rest = _with_section(rest or f"\n# {title}\n", section, body)
    edited = f"---\n{block}---\n{rest}"
    ModelCard(edited)  # what it cannot read, the Hub could not either
    return mark + edited.replace("\n", newline)


def grown(existing: Any, ours: list[str]) -> list[str]:
    """A list of metadata with ours added; a single value counts as a list of one."""
    values = [existing] if isinstance(existing, str) else list(existing or [])
    return values + [value for value in ours if value not in values]


def with_tags(existing: dict[str, Any], tags: list[str], base_model: str | None = None) -> dict[str, Any]:
    """The keys of metadata that every card of ours sets; what stands there already stays."""
    base_model = existing.get("base_model") or base_model
    metadata = {} if base_model is None else {"base_model": base_model}
    library = existing.get("library_name") or "transformers"
    return metadata | {"tags": grown(existing.get("tags"), tags), "library_name": library}


def _split(text: str) -> tuple[str, str]:
    """The YAML of the metadata block, and what follows the block."""
    match = REGEX_YAML_BLOCK.search(text)
    return (match.group(2) + "\n", text[match.end() :]) if match else ("", text)


def _parsed(block: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(block) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"the metadata block of the card is not YAML: mend it ({error}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"the metadata block of the card is of type {type(values).__name__}: mend it.")
    return values


def _with_section(text: str, section: str, body: str) -> str:
    begin, end = f"<!-- hf_speculative {section}: begin -->", f"<!-- hf_speculative {section}: end -->"
    if begin in body or end in body:
        raise ValueError(f"a name in the results holds `{begin}` or `{end}`, which mark what this writes: change it.")
    ours = f"{begin}\n{body}\n{end}"
    if (text.count(begin), text.count(end)) == (0, 0):
        return f"{text.rstrip()}\n\n{ours}\n" if text.strip() else f"{ours}\n"
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(begin) > text.index(end):
        raise ValueError(f"the card does not have `{begin}` once and `{end}` once after it: mend or remove them.")
    return text[: text.index(begin)] + ours + text[text.index(end) + len(end) :]
