"""The command `hf-speculative train`."""

from dataclasses import dataclass, field
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..command.checks import check_data, check_model
from ..command.interrupts import STOPPED, ends_at_once
from ..command.loading import load_embedded, load_target
from ..command.settings import DATA, Machine, Reading, setting, with_settings
from ..command.terminal import loading
from .settings import HOW, Settings


@dataclass(frozen=True)
class Options:
    """Options of the command, beside the settings of `train`."""

    target: str | None = setting(
        None, "The model to draft for. Default: the embedded target.", is_argument=True, check=check_model
    )
    data: str | None = setting(
        None,
        "Prompts: a file (.jsonl, .txt, also .gz; .json, .csv, .parquet), a folder, or a Hub name. Default: the target writes "
        "its own.",
        "--data",
        "--dataset",
    )
    output: Path = setting(Path("draft"), "Folder of the draft, its card and all that a stopped run goes on from.")
    resume: bool = setting(False, "Go on with the run in the output folder; with more --steps or --minutes, longer.")
    reading: Reading = field(default_factory=Reading)
    answers: str | None = setting(None, "A column with the target's own answers. Default: it answers now.", panel=DATA)
    store: Path | None = setting(None, "Folder for what the target makes of each text, computed once.", panel=HOW)
    bf16: bool = setting(False, "Mixed precision with bfloat16.", panel=HOW)
    report_to: str = setting("none", "A logger that transformers knows, such as tensorboard or wandb.", panel=HOW)
    machine: Machine = field(default_factory=Machine)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self):
        if self.data is not None:
            check_data("--data", self.data)
        elif idle := self.reading.given + ["--answers"] * (self.answers is not None):
            raise ValueError(f"{', '.join(idle)} is about --data: name a file, a folder or a Hub data set.")
        if self.resume and not self.output.exists():
            raise ValueError(f"--resume: there is no run in {self.output}: name its folder by --output.")


@with_settings(Options)
def train_command(settings: Options) -> None:
    """Train a draft for your model: a head or a small model that guesses what it will write.

    Needs nothing else:  hf-speculative train Qwen/Qwen3-8B --output my-head

    On your own prompts, which is better:  hf-speculative train Qwen/Qwen3-8B --data prompts.jsonl

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
    options = settings
    with ends_at_once():
        from ..measuring.plan import is_first_process
        from ..measuring.render.screen import print_table
        from . import train, wording
        from .deadline import Watch

    err = Console(stderr=True, highlight=False)
    with loading(err, "loading the target"):
        if options.target is None:
            model, _, tokenizer = load_embedded(options.machine)
        else:
            model, tokenizer = load_target(options.target, options.machine)
    is_first = is_first_process()
    say = (lambda sentence: err.print(Text(sentence))) if is_first else (lambda sentence: None)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=err, transient=True, disable=not is_first) as progress:
            task = progress.add_task("reading the prompts", total=None)

            def count(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total)

            def part(name: str) -> None:
                progress.update(task, description=name, completed=0, total=None)
                if not err.is_terminal:
                    say(f"{name} ...")

            found = train(
                model,
                options.data,
                options.output,
                options.settings,
                tokenizer=tokenizer,
                resume=options.resume,
                watch=Watch(count, say, part),
                reading={"answers": options.answers, **options.reading.keywords},
                store=options.store,
                bf16=options.bf16,
                report_to=[] if options.report_to == "none" else [options.report_to],
            )
    except KeyboardInterrupt as interrupt:
        say(f"stopped; {options.output} has what was made, and the same command with --resume goes on from there.")
        raise typer.Exit(STOPPED) from interrupt
    if is_first:
        console = Console(highlight=False)
        print_table(console, wording.acceptance(found))
        console.print(Text(wording.summary(found)))
        console.print(Text(f"The card, with the learning curve, is in {found.folder}. Go on with it:"))
        for line in wording.next_lines(found, options.reading):
            console.print(Text(f"  {line}"), soft_wrap=True)
