"""Results on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from ...reports.formats import plural
from ...reports.pages import as_text, visible
from ..results import Evaluation
from . import suites, wording
from .result_table import Table, sections

#: the most lines of bad rows, and of differences
MAX_LINES = 5
#: the least width of a setting's name
NAME_WIDTH = 18
#: columns left out on a narrow terminal, in this order, after those of rivals
LEFT_OUT = ("time to first token", "target passes", "decoding speedup", "prompts", "tokens/s a user")

#: styles of accepted draft tokens (True) and of the target's own tokens
STYLES = {True: "green", False: "bold"}
MEANING = "[green]green[/]: draft tokens the target accepted; [bold]bold[/]: tokens the target added."


def print_text(console: Console, prompt: str, pieces: Iterable[tuple[str, bool]]) -> None:
    """Print a prompt and its continuation, piece by piece."""
    console.out(visible(prompt), style="dim", end="")
    for piece, is_from_draft in pieces:
        console.out(visible(piece), style=STYLES[is_from_draft], end="")
    console.out("\n")


def print_evaluation(console: Console, evaluation: Evaluation, glossary: bool = False) -> None:
    """Print tables, recommendations, differences and bad rows. Names are never read as markup."""
    console.print(as_text(wording.title(evaluation), "bold"))
    console.print(as_text(wording.about(evaluation), "dim"))
    columns = print_tables(console, {"": evaluation})
    console.print()
    _print_meanings(console, columns, glossary)
    _print_findings(console, {"": evaluation})


def print_suites(console: Console, runs: Sequence[suites.Run], found: Mapping[Any, Evaluation], glossary: bool) -> None:
    """Print the first run's tables, notes and findings, then all runs side by side.

    Args:
        found: the evaluations of the first run by place; none where it is of a file.
    """
    console.print(as_text(suites.about(runs[0]), "dim"))
    tables = suites.tables(runs[0])
    for title, table in tables.items():
        print_table(console, table, title)
    for line in (*runs[0]["notes"], *(f"{s.title}: {note}" for s in sections(found) for note in s.notes)):
        console.print(as_text(line))
    _print_meanings(console, dict.fromkeys(name for table in tables.values() for name in table.columns), glossary)
    _print_findings(console, found)
    if len(runs) > 1:
        print_table(console, suites.side_by_side(runs), "Side by side")
        for index, run in enumerate(runs, start=1):
            console.print(as_text(f"#{index}: {suites.about(run)}", "dim"))


def print_tables(console: Console, found: Mapping[Any, Evaluation]) -> list[str]:
    """Print the table and notes of each section; return the names of all columns."""
    columns: dict[str, None] = {}
    for section in sections(found):
        columns |= dict.fromkeys(section.table.columns)
        print_table(console, section.table, section.title)
        for note in section.notes:
            console.print(as_text(note))
        if section.scores.columns:
            print_table(console, section.scores, "Task scores")
    return [*columns]


def _print_meanings(console: Console, columns: Iterable[str], glossary: bool) -> None:
    for name in columns if glossary else ():
        if (meaning := wording.meaning(name)) is not None:
            short = wording.SHORT.get(name, name)
            long = "" if short == name else f" ({name})"
            console.print(Text.assemble((short, "bold"), f"{long}: {meaning}", style="dim"))
    if not glossary:
        console.print("[dim]What the figures mean: --glossary.[/]")


def _print_findings(console: Console, found: Mapping[Any, Evaluation]) -> None:
    """Print how far evaluations are, their recommendations, differences from plain decoding, and bad rows."""
    for section in sections(found):
        if (told := section.recommendation) is not None:
            console.print(as_text(f"{section.title}: {told.advice}", "bold green" if told.is_gain else "bold"))
    for place, one in found.items():
        if not one.is_complete:
            console.print(as_text(wording.at_place(place, wording.progress(one)), "yellow"))
        where = ((d, f"prompt {d.index}, token {d.position}") for d in one.differences)
        differences = [f"{place}, logit gap {wording.gap(d.logit_gap)}: {d.setting}" for d, place in where]
        _print_lines(console, wording.differences(one.differences), differences)
        bad_rows = [f"row {row.index}: {row.message}" for row in one.bad_rows]
        _print_lines(console, f"{plural(len(bad_rows), 'row')} could not be used:", bad_rows)


def _print_lines(console: Console, title: str, lines: list[str]) -> None:
    """Print the first lines below a title; nothing without any."""
    if lines:
        console.print(as_text(title, "yellow"))
    for line in lines[:MAX_LINES]:
        console.print(as_text(f"  {line}"))
    if len(lines) > MAX_LINES:
        console.print(as_text(f"  and {len(lines) - MAX_LINES:,} more."))


def print_table(console: Console, figures: Table, title: str = "") -> None:
    """Print a table: the recommended setting bold, clear losses red, without columns that do not fit."""
    rivals = [[name for name in figures.columns if name.startswith("over ")]]
    unlimited = console.options.update(max_width=1000)  # else what is measured is cut to the console's width
    for left_out in accumulate([[], *rivals, *([name] for name in LEFT_OUT)]):
        table = _table(figures, title, left_out)
        if Measurement.get(console, unlimited, table).minimum <= console.width:
            break
    console.print()
    console.print(table)


def _table(figures: Table, title: str, left_out: Sequence[str]) -> RichTable:
    shown = [name for name in figures.columns if name not in left_out]
    heading = as_text(title, "bold") if title else None
    table = RichTable(title=heading, title_justify="left", padding=(0, 1, 0, 0), box=None, header_style="dim")
    table.add_column("", min_width=min(NAME_WIDTH, max(len(line.label) for line in figures.lines)))
    for name in shown:
        table.add_column(as_text(wording.SHORT.get(name, name)), justify="right", no_wrap=True)
    for line in figures.lines:
        best = "bold green" if line.tone == "gain" else "bold"
        style = best if line.is_best else "red" if line.tone == "loss" else ""
        table.add_row(as_text(line.label), *(line.figures.get(name, "") for name in shown), style=style)
    return table
