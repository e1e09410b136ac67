"""What the command train prints: an estimate, or what came out."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..measuring.render.screen import print_table
from . import wording
from .estimate import Estimate
from .results import Trained
from .run import Run


def estimate(console: Console, run: Run, costs: Estimate, seconds: float) -> None:
    """What a dry run found.

    Args:
        seconds: that the answers of the dry run took.
    """
    total, answering = len(run.data.prompts) * run.settings.answers_per_prompt, 0.0
    if run.data.answers:
        console.print(f"answers: {len(run.examples):,}, from the data set")
    else:
        each = seconds / max(1, len(run.examples))
        wanted, total = total, run.deadline.num_answers(total, each)
        answering = each * total
        of_all = f" of {wanted:,}, as many as the time has room for" if total < wanted else ""
        console.print(Text(f"answers: {total:,}{of_all}, about {duration(answering)} ({each:.2f} s each)"))
    num_steps = run.settings.steps or run.deadline.num_steps(costs.seconds, answering)
    whole = duration(costs.seconds * num_steps)
    console.print(Text(f"training: {num_steps:,} steps of {costs.seconds:.2f} s, about {whole}; measuring apart"))
    console.print(Text(f"memory: about {costs.gigabytes:.1f} GB, of a batch like the first"))
    if run.store is not None:
        size = run.stored.num_bytes * total / max(1, len(run.examples)) / 1e9
        console.print(Text(f"store: about {size:,.1f} GB in {run.store}"))
    for note in run.notes(total, num_steps):
        console.print(Text(note))


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def result(console: Console, found: Trained) -> None:
    """What a run brought."""
    print_table(console, wording.acceptance(found))
    console.print(Text(wording.summary(found)))
    console.print(Text(f"The card, with the learning curve, is in {found.folder}. Go on with it:"))
    for line in wording.next_lines(found):
        console.print(Text(f"  {line}"), soft_wrap=True)
