"""Results on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.terminal import as_text
from . import wording
from .results import CellResult, Report


def print_cell(console: Console, cell: CellResult, report: Report) -> None:
    """The table of one cell; a method that loses is red, and says so."""
    table = Table(title=wording.title(cell), title_justify="left", title_style="bold")
    table.add_column("")
    for name in cell.methods:
        losses, gains = cell.losses(name), wording.verdict(cell, name) == "ahead"
        table.add_column(name, justify="right", style="red" if losses else "green" if gains else "")
    for label, figures in wording.rows(cell, report):
        table.add_row(label, *figures, style="bold" if label in ("speedup", "verdict") else "")
    console.print(table)
    for note in wording.notes(cell):
        console.print(as_text(note))
    console.print(as_text(wording.bare_passes(cell), "dim"))


def print_legend(console: Console, report: Report) -> None:
    """Where it was measured, and what the figures mean."""
    console.print(as_text(wording.about(report)))
    for name, meaning in wording.MEANINGS.items():
        console.print(Text.assemble((name, "bold"), f": {meaning}", style="dim"))
    for cell, reason in report.failures.items():
        console.print(as_text(f"not measured: {cell}: {reason}", "yellow"))
