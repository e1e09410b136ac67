"""Results on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.terminal import as_text
from . import wording
from .results import CellResult, Report


def print_cell(console: Console, cell: CellResult, report: Report) -> None:
    """The table of one cell; its verdicts are red or green."""
    table = Table(title=wording.title(cell), title_justify="left", title_style="bold")
    table.add_column("")
    for name in cell.methods:
        table.add_column(name, justify="right")
    for label, figures in wording.rows(cell, report):
        shown = [_verdict(text) for text in figures] if label == "verdict" else figures
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
        table = Table("", *names)
        for place, figures in lines:
            table.add_row(place, *(Text.assemble(speedup, "\n", _verdict(verdict)) for speedup, verdict in figures))
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
