"""Print the results of `check` and `audit`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from ..measuring.render.screen import print_tables
from ..reports.pages import as_text
from .answer import Compatibility
from .audit import Audit

#: what the paths mean, printed with the answer
PATHS = {
    "ragged": "each row of a batch has its own length, so rows never wait for each other. The fast path.",
    "universal": "transformers' own cache is rolled back, and the rows of a batch share its length.",
}


def print_answer(console: Console, answer: Compatibility) -> None:
    """Print what was found about a pair; where it was measured, the tables and the verdict."""
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
        for what, told in (("Linear layers", report.linears), ("Passes", report.passes)):
            if told is not None:
                console.print(Text(f"{what} of the {role}: {told}."))
    console.print("Logits: through the cache, against one plain pass; the largest difference, in standard deviations.")
    if answer.vocabulary is not None:
        strategy = f"; strategy: {answer.vocabulary.strategy}" if answer.vocabulary.strategy else ""
        console.print(Text(f"Vocabularies: {answer.vocabulary.reason}{strategy}."))
    for note in answer.notes:
        console.print(Text.assemble(("Note: ", "yellow"), as_text(note), "."))
    console.print("[green]compatible[/]" if answer else Text.assemble(("not compatible", "red"), f": {answer.reason}"))
    if (advice := answer.advice) is None:
        return
    sizes = [f"{role} {size / 1e6:,.1f} million" for role, size in advice.parameters.items()]
    console.print(f"\nParameters: {', '.join(sizes)}.")
    print_tables(console, {f"batch {size}": evaluation for size, evaluation in advice.evaluations.items()})
    console.print(as_text("Speedups: medians of a few short texts; `eval` measures more.", "dim"))
    console.print(as_text(advice.verdict, "bold"))


def print_audits(console: Console, tokenizer: PreTrainedTokenizerBase, audits: dict[int, Audit | None]) -> bool:
    """Print a line for each row whose texts differ, then the number of ties; returns whether all are ties."""
    differ = {row: audit for row, audit in audits.items() if audit is not None}
    for row, audit in differ.items():
        first, second = [repr(text) for text in tokenizer.batch_decode([[token] for token in audit.tokens])]
        console.print(as_text(f"row {row}, {first} or {second}: {audit}", "yellow" if audit.is_tie else "red"))
    num_ties = sum(audit.is_tie for audit in differ.values())
    others = f", [red]{len(differ) - num_ties} not[/]" if num_ties < len(differ) else ""
    console.print(f"{len(differ)} of {len(audits)} texts differ, {num_ties} by ties within rounding{others}.")
    return num_ties == len(differ)
