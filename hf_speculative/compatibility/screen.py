"""The answer of `check` on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.formats import number, percent, plural
from ..reports.terminal import as_text
from .advice import Advice
from .answer import Compatibility
from .trials import Trial

#: what the paths mean, printed with the answer
PATHS = {
    "ragged": "each row of a batch has its own length, so rows never wait for each other. The fast path.",
    "universal": "transformers' own cache is rolled back, and the rows of a batch share its length.",
}
#: positions whose acceptance is shown
NUM_POSITIONS = 3
#: fewer tokens than this tell little
FEW_TOKENS = 100
MEANINGS = {
    "length": "the number of draft tokens that pays most; a tree has as many as pay in its round.",
    "tokens": "of a round that drafts, the target's own included.",
    "costs": "of a round at that length, measured, in plain steps.",
    "batch": "texts written side by side; all of them wait for the longest draft.",
    "expected": "the speedup over plain decoding of such a batch that theory makes of what was kept and what rounds cost "
    "(Leviathan et al., Theorem 3.8), with how much these few texts leave to chance.",
}


def print_answer(console: Console, answer: Compatibility) -> None:
    reports = {"target": answer.target} | ({"draft": answer.draft} if answer.draft is not None else {})
    table = Table("", "model", "path", "logits differ by")
    for role, report in reports.items():
        deviation = "" if report.deviation is None else f"{report.deviation:.1e}"
        table.add_row(role, report.name, report.path or "[red]none[/]", deviation)
    console.print(table)
    for path in dict.fromkeys(report.path for report in reports.values()):
        if path is not None:
            console.print(f"[bold]{path}[/]: {PATHS[path]}")
    for role, report in reports.items():
        if report.why is not None and report.path != "ragged":
            console.print(Text(f"Why the {role} is not on the ragged path: it {report.why}."))
        if report.weights is not None:
            console.print(Text(f"Weights of the {role}: {report.weights}."))
    console.print(
        "Logits: through the cache, with tokens taken back, against one plain pass; the largest difference, in standard "
        "deviations of the logits."
    )
    if answer.vocabulary is not None:
        strategy = f"; strategy: {answer.vocabulary.strategy}" if answer.vocabulary.strategy else ""
        console.print(Text(f"Vocabularies: {answer.vocabulary.reason}{strategy}."))
    for note in answer.notes:
        console.print(Text.assemble(("Note: ", "yellow"), as_text(note), "."))
    console.print("[green]compatible[/]" if answer else Text.assemble(("not compatible", "red"), f": {answer.reason}"))
    if answer.advice is not None:
        print_advice(console, answer.advice)


def print_advice(console: Console, advice: Advice) -> None:
    """What was tried, and the verdict, which comes last."""
    sizes = [f"{role} {size / 1e6:,.1f} million" for role, size in advice.parameters.items()]
    console.print(f"\nParameters: {', '.join(sizes)}.")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    several = len(advice.batch_sizes) > 1
    for name in (
        "drafts by",
        *["batch"] * several,
        "text",
        "length",
        "kept up to 1, 2, 3",
        "tokens",
        "costs",
        "expected",
    ):
        table.add_column(name, justify="left" if name in ("drafts by", "text") else "right")
    last, last_size = None, None
    for trial in advice.trials:
        name, size = trial.source if trial.source != last else "", str(trial.batch_size)
        shown = size if name or size != last_size else ""
        table.add_row(as_text(name), *[shown] * several, trial.decoding, *_figures(trial))
        last, last_size = trial.source, size
    console.print(table)
    for name, meaning in MEANINGS.items():
        if name == "batch" and not several:
            continue
        console.print(Text.assemble((name, "bold"), f": {meaning}", style="dim"))
    for trial in advice.trials:
        if trial.failure is not None:
            console.print(as_text(f"{trial.source}, {trial.decoding}, could not be tried: {trial.failure}", "yellow"))
    if not all(trial.is_timed for trial in advice.trials if trial.num_drafts):
        console.print("Costs that could not be measured are assumed from the number of weights.", style="yellow")
    fewest = min((trial.num_tokens for trial in advice.trials if trial.failure is None), default=0)
    if fewest < FEW_TOKENS:
        console.print(f"Tried on {plural(fewest, 'token')} only: give more --seconds to be surer.", style="yellow")
    console.print(as_text(advice.verdict, "bold"))


def _figures(trial: Trial) -> list[Text | str]:
    if not trial.num_drafts:
        return ["", "nothing drafted", "", "", ""]
    rates = ", ".join(percent(rate).removesuffix(" %") for rate in trial.acceptance[:NUM_POSITIONS])
    speedup = trial.speedup
    style = "" if speedup is None else "green" if speedup.is_gain else "red" if speedup.is_loss else ""
    length = str(trial.draft_length or "tree")
    return [
        length,
        f"{rates or 0} %",
        number(trial.mean_acceptance_length),
        number(trial.cost_of_round),
        Text(str(speedup), style),
    ]
