"""Texts and the table of the command, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from ...reports.formats import plural, times
from ...reports.pages import visible
from ..comparison import Comparison
from ..speedup import remarks

#: the draft's tokens that the target kept, and the target's own
STYLES = {True: "green", False: "bold"}
MEANING = "[green]green[/]: draft tokens the target accepted; [bold]bold[/]: tokens the target added."


def print_text(console: Console, prompt: str, pieces: Iterable[tuple[str, bool]]) -> None:
    """Prints a prompt and its continuation, piece by piece as they are generated."""
    console.out(visible(prompt), style="dim", end="")
    for piece, is_from_draft in pieces:
        console.out(visible(piece), style=STYLES[is_from_draft], end="")
    console.out("\n")


def print_comparison(console: Console, comparison: Comparison) -> None:
    prompts, pairs = plural(comparison.num_prompts, "prompt"), plural(len(comparison.pairs), "pair")
    console.print(f"{prompts}, {pairs} of runs, one each way; {comparison.setting.label}", markup=False)
    console.print(_table(comparison))
    for sentence in _remarks(comparison):
        console.print(sentence)
    if comparison.setting.is_exact:
        same, total = comparison.num_identical, comparison.num_prompts
        console.print(f"Identical to plain decoding: [bold]{same} of {total}[/] texts.")


def _table(comparison: Comparison) -> Table:
    stats, speedup = comparison.statistics, comparison.speedup
    table = Table("")
    for name in ("plain", "speculative"):
        table.add_column(name, justify="right")
    totals = comparison.plain_total, comparison.speculative_total
    table.add_row("time", *(f"{total('seconds'):.2f} s" for total in totals))
    table.add_row("new tokens", *(str(total("num_tokens")) for total in totals))
    table.add_row("tokens per second", *(f"{total('num_tokens') / total('seconds'):.1f}" for total in totals))
    table.add_row("target passes", str(comparison.num_plain_passes), str(stats.num_target_forwards))
    if stats.num_draft_tokens:
        table.add_row("draft tokens accepted", "", f"{stats.draft_acceptance_rate:.1%}")
        table.add_row("mean acceptance length", "", f"{stats.mean_acceptance_length:.2f}")
    if speedup is not None and speedup.num_pairs > 1:
        table.add_section()
        table.add_row("speedup", "1.00x", f"[bold]{speedup}[/]")
        if speedup.spread is not None:
            table.add_row("  quartiles", "", "{:.2f} to {:.2f}".format(*speedup.spread))
    if comparison.predicted_speedup is not None:
        table.add_row("predicted by theory", "", times(comparison.predicted_speedup))
    return table


def _remarks(comparison: Comparison) -> Iterator[str]:
    """Notes below the table: what the figures mean."""
    stats, speedup = comparison.statistics, comparison.speedup
    yield from remarks("speculative", speedup, drafts_nothing=not stats.num_draft_tokens)
    if speedup is None or speedup.num_pairs < 2:
        yield "A speedup takes two repeats or more: give --repeats 3."
    elif not speedup.is_noise:
        yield "Speedup: the median of the pairs' ratios, and their quartiles."
    if stats.num_draft_tokens:
        yield "Mean acceptance length counts the token that the target adds."
    if comparison.predicted_speedup is not None:
        yield "Prediction: Leviathan et al., Theorem 3.8."
