"""The command `hf-speculative train`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..command.arguments import DTYPES, check_data, check_device, check_dtype, check_models, load_target
from ..command.interrupts import STOPPED, ends_at_once
from ..command.settings import with_settings
from ..command.terminal import quiet_transformers
from .settings import HOW, TABLES, WHERE, Settings


@with_settings(Settings)
def train_command(
    target: Annotated[
        str | None,
        typer.Argument(help="The model that the draft is for: a Hub name or folder. Default: the embedded target."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "--dataset",
            help="Prompts: a file (.jsonl, .txt, also .gz; .json, .csv, .parquet), a folder, or a Hub name. Default: the "
            "target writes its own.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder of the draft, its card, its report and all that a stopped run goes on from.")
    ] = Path("draft"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in the output folder, from its last checkpoint; one that is done, with more --steps or "
            "for more --minutes.",
        ),
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            help="Upload the draft, its card and its report to this repository, at the end. Not the answers, nor checkpoints."
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make that repository a private one, if it is new.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Answer a few prompts, time a step, tell time and memory of the whole, and stop."
        ),
    ] = False,
    field: Annotated[
        str, typer.Option(help="The column with the prompts: texts, or lists of chat messages.", rich_help_panel=WHERE)
    ] = "prompt",
    template: Annotated[
        str | None,
        typer.Option(help="A Jinja template over the columns, instead of --field.", rich_help_panel=WHERE),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="A column with answers that the target wrote. Default: the target answers the prompts now.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of the data set to use.", rich_help_panel=WHERE)
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Which configuration of a data set on the Hub.", rich_help_panel=WHERE)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first so many rows.", rich_help_panel=WHERE)
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what the target makes of each text: computed once, not in every epoch. --dry-run tells its size.",
            rich_help_panel=HOW,
        ),
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Mixed precision with bfloat16.", rich_help_panel=HOW)] = False,
    report_to: Annotated[
        str, typer.Option(help="A logger that transformers knows, such as tensorboard or wandb.", rich_help_panel=HOW)
    ] = "none",
    dtype: Annotated[
        str,
        typer.Option(help=f"Of the target: {', '.join(DTYPES)}. Default: the format in which its weights are stored."),
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda if there is one.")] = "",
    *,
    settings: Settings,
) -> None:
    """Train a draft for your model: a head or a small model that guesses what it will write.

    Needs nothing else:  hf-speculative train Qwen/Qwen3-8B --output my-head

    On your own prompts, which is better:  hf-speculative train Qwen/Qwen3-8B --data prompts.jsonl

    How long, how much memory?  hf-speculative train Qwen/Qwen3-8B --data prompts.jsonl --dry-run

    A small model that drafts already, for a fine-tuned target:  hf-speculative train my-finetune --data prompts.jsonl
    --head draft:Qwen/Qwen3-0.6B --lora-rank 16 --minutes 10

    Nothing to download:  hf-speculative train --head layers:2 --minutes 2

    Several GPUs:  accelerate launch -m hf_speculative train my-model --data prompts.jsonl

    The target answers the prompts first, since a draft has to learn what its target writes. Without data it writes the prompts
    as well, as a user would in its chat template. Then the draft learns from the target's distributions. Before, in between and
    after, acceptance is measured by real decoding of prompts that were held out, and the best checkpoint is kept. You may stop
    at any time: --resume goes on. The folder then works as draft_model=, and the target's output stays exactly what it is
    without.
    """
    begun = time.monotonic()
    if data is None:
        told = {"--template": template, "--answers": answers, "--split": split, "--config": config, "--limit": limit}
        if idle := [option for option, value in told.items() if value is not None]:
            raise ValueError(
                f"{', '.join(idle)} is about --data: name a file, a folder or a Hub data set with prompts."
            )
    else:
        check_data("--data", data)
    check_models(TARGET=target)
    if resume and not output.exists():
        raise ValueError(
            f"--resume: there is no run in {output}: name its folder by --output, or begin one without --resume."
        )
    with ends_at_once():
        from ..embedded import embedded_pair
        from ..models import num_parameters
        from . import console
        from .push import Push
        from .run import Run, Watch

    err = Console(stderr=True, highlight=False)
    quiet_transformers()
    check_dtype(dtype)
    check_device(device)
    if template is not None and field != "prompt":
        raise ValueError("--field and --template both say where prompts come from: give one.")
    if private and push_to_hub is None:
        raise ValueError("--private has no effect without --push-to-hub.")
    push = None if push_to_hub is None else Push(push_to_hub, private=private or None)
    arguments: dict[str, Any] = {
        "bf16": bf16,
        "report_to": [] if report_to == "none" else [report_to],
    }
    with ends_at_once(), err.status("loading the target"):
        import torch

        place = device or (f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")
        if target is None:
            model, _, tokenizer = embedded_pair(dtype=getattr(torch, dtype or "float32"))
            model.to(place)
        else:
            model, tokenizer = load_target("TARGET", target, dtype, place)
    is_first = int(os.environ.get("RANK", "0")) == 0
    say = (lambda sentence: err.print(Text(sentence))) if is_first else (lambda sentence: None)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=err, transient=True, disable=not is_first) as progress:
            task = progress.add_task("reading the prompts", total=None)
            lines = console.Told(say if is_first and not err.is_terminal else None)

            def count(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total)
                lines.count(done, total)

            def part(name: str) -> None:
                progress.update(task, description=name, completed=0, total=None)
                lines.part(name)

            watch = Watch(count, say, part, is_first)
            run = Run(model, output, settings, tokenizer, watch, push, store, begun=begun)
            run.begin(resume)
            reading = {"answers": answers, "split": split, "config": config, "limit": limit}
            run.read(data, reading | {"prompt": field if template is None else template})
            clock = console.StopWatch()
            run.answer(only=settings.batch_size if dry_run else None)
            seconds = clock.seconds()
            if settings.kind == TABLES:
                return _finish(run.tables(), is_first)
            costs = run.prepare(arguments, records=not dry_run)
        if dry_run:
            console.estimate(err, run, costs, seconds)
            return
        size = num_parameters(run.student.draft()) / 1e6
        say(f"{size:.1f} million parameters learn from {len(run.examples):,} answers.")
        result = run.train(resume)
    except KeyboardInterrupt as interrupt:
        say(f"stopped; {output} has what was made so far, and the same command with --resume goes on from there.")
        raise typer.Exit(STOPPED) from interrupt
    _finish(result, is_first)


def _finish(result: Any, is_first: bool) -> None:
    from . import console

    if is_first:
        console.result(Console(highlight=False), result)
