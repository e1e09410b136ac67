"""Results on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.terminal import as_text
from . import wording
from .results import CellResult, Report

#: columns of the screen that the names of figures take, and that a method needs
OF_NAMES, OF_METHOD = 18, 14


def print_cell(console: Console, cell: CellResult, report: Report) -> None:
    """The table of one cell, in parts if the screen is narrow; its verdicts are red or green."""
    names = list(cell.methods)
    at_once = max(1, (console.width - OF_NAMES) // OF_METHOD)
    for first in range(0, len(names), at_once):
        part = slice(first, first + at_once)
        title = None if first else wording.title(cell)
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("")
        for name in names[part]:
            table.add_column(name, justify="right", overflow="fold")
        for label, figures in wording.rows(cell, report):
            shown = [_verdict(text) for text in figures[part]] if label == "verdict" else figures[part]
            if any(map(str, shown)):
                table.add_row(label, *shown, style="bold" if label in ("speedup", "verdict") else "")
        console.print(table)
    for note in wording.notes(cell):
        console.print(as_text(note))
    console.print(as_text(wording.bare_passes(cell), "dim"))


def print_summary(console: Console, report: Report, glossary: bool) -> None:
    """One sentence and, of several cells, a table; where it was measured; on request what the figures mean."""
    console.print(as_text(wording.headline(report), "bold"))
    if len(report.cells) > 1:
        names, lines = wording.summary(report)
        places = [place for place, _ in lines]
        shown = [
            [Text.assemble(speedup, "\n", _verdict(verdict)) for speedup, verdict in figures] for _, figures in lines
        ]
        if len(names) > len(places):  # longer rather than wider
            names, places, shown = places, names, [list(column) for column in zip(*shown, strict=True)]
        table = Table("", *names)
        for place, figures in zip(places, shown, strict=True):
            table.add_row(place, *figures)
        console.print(table)
    console.print(as_text(wording.about(report)))
    for name, meaning in wording.MEANINGS.items() if glossary else ():
        console.print(Text.assemble((name, "bold"), f": {meaning}", style="dim"))
    if not glossary:
        console.print("[dim]What the figures mean: --glossary.[/]")
    for cell, reason in report.failures.items():
        console.print(as_text(f"not measured: {cell}: {reason}", "yellow"))


def _verdict(text: str) -> Text:
    return as_text(text, "red" if text.startswith("LOSS") else "green" if text == "ahead" else "")
