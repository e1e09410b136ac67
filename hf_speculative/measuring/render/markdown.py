"""Results as Markdown, to paste into an issue or a card."""

from collections.abc import Iterable

from ...reports.pages import visible
from ..results import Evaluation
from . import wording
from .result_table import Table, sections


def text(evaluation: Evaluation) -> str:
    """A table for each temperature, its notes and its recommendation."""
    lines = [f"**{_shown(wording.title(evaluation))}**", "", wording.about(evaluation), ""]
    for section in sections({"": evaluation}):
        lines += [f"### {_shown(section.title)}", "", *of_table(section.table), ""]
        lines += [f"* {_shown(note)}" for note in section.notes]
        if section.recommendation is not None:
            lines += [f"* {_shown(wording.sentence(section.recommendation.advice))}"]
        lines += [""]
    return "\n".join(lines)


def of_table(table: Table, about: str = "setting") -> list[str]:
    """The lines of a table.

    Args:
        about: the name of the first column.
    """
    columns = table.columns
    lines = ([line.label, *(line.figures.get(name, "") for name in columns)] for line in table.lines)
    return [row([about, *columns]), row(["---"] * (1 + len(columns))), *map(row, lines)]


def row(values: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(_shown(value).replace("|", "/") for value in values) + " |"


def _shown(text: str) -> str:
    return visible(text).replace("\n", " ")
