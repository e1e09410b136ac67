"""An evaluation on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...reports.terminal import as_text
from ..recommendation import Recommendation
from ..results import Evaluation
from ..totals import Totals
from . import wording

#: of bad rows and of differences, each on a line
MAX_LINES = 5


def print_evaluation(console: Console, evaluation: Evaluation, glossary: bool = False) -> None:
    """Tables, recommendations, and what went wrong. Names are printed as they are, never as markup."""
    console.print(as_text(wording.title(evaluation), "bold"))
    console.print(as_text(wording.about(evaluation), "dim"))
    if not evaluation.is_complete:
        console.print(as_text(wording.progress(evaluation), "yellow"))
    columns: dict[str, None] = {}
    recommendations = []
    for temperature in evaluation.temperatures:
        totals, found = wording.at(evaluation, temperature), evaluation.recommendation(temperature)
        figures, scores = wording.totals(evaluation, totals), wording.scores(totals)
        columns |= dict.fromkeys(figures.columns)
        recommendations += [found] if found else []
        _print_table(console, figures, wording.temperature(temperature), totals, found)
        for note in wording.notes(totals):
            console.print(as_text(note))
        if scores.columns:
            _print_table(console, scores, "Task scores", totals, found)
    console.print()
    for name, meaning in wording.MEANINGS.items() if glossary else ():
        if name in columns:
            short = wording.SHORT.get(name, name)
            long = "" if short == name else f" ({name})"
            console.print(Text.assemble((short, "bold"), f"{long}: {meaning}", style="dim"))
    if not glossary:
        console.print("[dim]What the figures mean: --glossary.[/]")
    for recommendation in recommendations:
        console.print(as_text(str(recommendation), "bold green" if recommendation.is_gain else "bold"))
    _print_differences(console, evaluation)
    _print_bad_rows(console, evaluation)


def _print_table(
    console: Console, figures: wording.Table, title: str, totals: list[Totals], found: Recommendation | None
) -> None:
    """The recommended setting is bold, one that clearly loses is red."""
    table = Table(
        title=as_text(title, "bold"), title_justify="left", padding=(0, 1, 0, 0), box=None, header_style="dim"
    )
    table.add_column("")
    for name in figures.columns:
        table.add_column(as_text(wording.SHORT.get(name, name)), justify="right", no_wrap=True)
    for line, of_setting in zip(figures.lines, totals, strict=True):
        style = "red" if of_setting.speedup is not None and of_setting.speedup.is_loss else ""
        if found is not None and line.setting == found.setting:
            style = "bold green" if found.is_gain else "bold"
        table.add_row(as_text(line.setting.label), *line.figures, style=style)
    console.print()
    console.print(table)


def _print_differences(console: Console, evaluation: Evaluation) -> None:
    if evaluation.differences:
        console.print(as_text(wording.differences(evaluation), "yellow"))
        _print_lines(
            console,
            [
                f"prompt {d.index}, token {d.position}, logit gap {wording.gap(d.logit_gap)}: {d.setting}"
                for d in evaluation.differences
            ],
        )


def _print_bad_rows(console: Console, evaluation: Evaluation) -> None:
    if evaluation.bad_rows:
        console.print(as_text(f"{wording.plural(len(evaluation.bad_rows), 'row')} could not be used:", "yellow"))
        _print_lines(console, [f"row {row.index}: {row.message}" for row in evaluation.bad_rows])


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines[:MAX_LINES]:
        console.print(as_text(f"  {line}"))
    if len(lines) > MAX_LINES:
        console.print(as_text(f"  and {len(lines) - MAX_LINES:,} more."))
