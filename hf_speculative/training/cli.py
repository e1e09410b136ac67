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
from ..command.terminal import quiet_transformers

#: minutes of a run where neither they nor steps are given
MINUTES = 60.0
WHERE = "Data"
HOW = "Training"


def train_command(
    target: Annotated[
        str | None,
        typer.Argument(help="The model that the draft is for: a Hub name or folder. Default: the embedded target."),
    ] = None,
    head: Annotated[
        str,
        typer.Option(
            help="What is trained. eagle3: a head that reads the target's hidden states, and goes on from its own. dflash, "
            "jetspec: one that fills a whole block at once. layers:N: a copy of the target's first N layers, as a small model. "
            "draft:FOLDER: a small model of the target's tokenizer, or a head, that is there already."
        ),
    ] = "eagle3",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "--dataset",
            help="Prompts: a file (.jsonl, .txt, also .gz; .json, .csv, .parquet), a folder, or a Hub name.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder of the draft, its card, its report and all that a stopped run goes on from.")
    ] = Path("draft"),
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the optimizer.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Time of the whole command: answers, measuring and training, as many as fit. Default, without --steps: "
            f"{MINUTES:g}."
        ),
    ] = None,
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
    held_out: Annotated[
        int, typer.Option(min=1, help="Prompts to measure on, which are not learned from.", rich_help_panel=WHERE)
    ] = 16,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens of an answer.", rich_help_panel=WHERE)
    ] = 256,
    answers_per_prompt: Annotated[
        int, typer.Option(min=1, help="Answers sampled to each prompt: more to learn from.", rich_help_panel=WHERE)
    ] = 1,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="The temperature at which the target will be used; 0 is greedy decoding.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="The top-k of that use; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="The top-p of that use; 1 is off.")] = 1.0,
    loss: Annotated[
        str,
        typer.Option(
            help="lk_hybrid: KL first, then the chance of a rejection. forward_kl, reverse_kl, total_variation, "
            "negative_log_acceptance; cross_entropy, for greedy use alone.",
            rich_help_panel=HOW,
        ),
    ] = "lk_hybrid",
    lora_rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="With draft:FOLDER: train a LoRA of this rank on it, then merge it.", rich_help_panel=HOW
        ),
    ] = None,
    on_policy: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="With a draft model: the share of passes in which it learns from texts of its own.",
            rich_help_panel=HOW,
        ),
    ] = 0.0,
    learning_rate: Annotated[
        float | None, typer.Option(help="Default: 1e-4 for draft:FOLDER, else 1e-3.", rich_help_panel=HOW)
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts in a step.", rich_help_panel=HOW)] = 8,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Split each step into so many passes, to save memory.", rich_help_panel=HOW)
    ] = 1,
    max_length: Annotated[
        int, typer.Option(min=2, help="Tokens of a text; the rest is cut off.", rich_help_panel=HOW)
    ] = 2048,
    evaluations: Annotated[
        int, typer.Option(min=1, help="How often acceptance is measured and a checkpoint kept.", rich_help_panel=HOW)
    ] = 8,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Draft tokens in a round of those measurements, and in the block of dflash and jetspec. Default: 7 for these, "
            "else 5.",
            rich_help_panel=HOW,
        ),
    ] = None,
    ttt_steps: Annotated[
        int, typer.Option(min=1, help="eagle3: steps on its own states (training-time test).", rich_help_panel=HOW)
    ] = 3,
    head_layers: Annotated[
        int | None,
        typer.Option(
            min=1, help="dflash, jetspec: their layers. Default: 1 to 5, by the target's.", rich_help_panel=HOW
        ),
    ] = None,
    anchors: Annotated[
        int,
        typer.Option(min=1, help="dflash, jetspec: blocks in each text, at random places.", rich_help_panel=HOW),
    ] = 64,
    draft_vocab_size: Annotated[
        int,
        typer.Option(min=1, help="eagle3, dflash: it proposes the so many most frequent tokens.", rich_help_panel=HOW),
    ] = 32000,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack/--no-pack",
            help="Short texts share a row, if the model keeps them apart; the loss is the same, and a step is shorter.",
            rich_help_panel=HOW,
        ),
    ] = True,
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
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    dtype: Annotated[
        str,
        typer.Option(help=f"Of the target: {', '.join(DTYPES)}. Default: the format in which its weights are stored."),
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda if there is one.")] = "",
) -> None:
    """Train a draft for your model: a head or a small model that guesses what it will write.

    Needs prompts, nothing else:  hf-speculative train Qwen/Qwen3-8B --data prompts.jsonl --output my-head

    How long, how much memory?  hf-speculative train Qwen/Qwen3-8B --data prompts.jsonl --dry-run

    A small model that drafts already, for a fine-tuned target:  hf-speculative train my-finetune --data prompts.jsonl
    --head draft:Qwen/Qwen3-0.6B --lora-rank 16 --minutes 10

    Nothing to download but prompts:  hf-speculative train --data prompts.jsonl --head layers:2 --minutes 2

    Several GPUs:  accelerate launch -m hf_speculative train my-model --data prompts.jsonl

    The target answers the prompts first, since a draft has to learn what its target writes. Then the draft learns from the
    target's distributions. Before, in between and after, acceptance is measured by real decoding of prompts that were held
    out, and the best checkpoint is kept. You may stop at any time: --resume goes on. The folder then works as draft_model=, and
    the target's output stays exactly what it is without.
    """
    begun = time.monotonic()
    if data is None:
        raise ValueError("--data is missing: name a file, a folder or a Hub data set with prompts.")
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
        from .distributions import SamplingParams
        from .push import Push
        from .run import Run, Watch
        from .settings import Settings

    err = Console(stderr=True, highlight=False)
    quiet_transformers()
    check_dtype(dtype)
    check_device(device)
    if template is not None and field != "prompt":
        raise ValueError("--field and --template both say where prompts come from: give one.")
    if private and push_to_hub is None:
        raise ValueError("--private has no effect without --push-to-hub.")
    push = None if push_to_hub is None else Push(push_to_hub, private=private or None)
    settings = Settings(
        head=head,
        lora_rank=lora_rank,
        use=SamplingParams(temperature, top_k, top_p),
        loss=loss,
        on_policy=on_policy,
        steps=steps,
        minutes=MINUTES if steps is None and minutes is None else minutes,
        num_evaluations=evaluations,
        batch_size=batch_size,
        accumulate=accumulate,
        max_length=max_length,
        max_new_tokens=max_new_tokens,
        answers_per_prompt=answers_per_prompt,
        learning_rate=learning_rate,
        held_out=held_out,
        num_draft_tokens=num_draft_tokens,
        ttt_steps=ttt_steps,
        head_layers=head_layers,
        anchors=anchors,
        draft_vocab_size=draft_vocab_size,
        pack=pack,
        seed=seed,
    )
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
            watch = Watch(
                lambda done, total: progress.update(task, completed=done, total=total),
                say,
                lambda name: progress.update(task, description=name, completed=0, total=None),
                is_first,
            )
            run = Run(model, output, settings, tokenizer, watch, push, store, begun=begun)
            run.begin(resume)
            reading = {"answers": answers, "split": split, "config": config, "limit": limit}
            run.read(data, reading | {"prompt": field if template is None else template})
            clock = console.StopWatch()
            run.answer(only=batch_size if dry_run else None)
            seconds = clock.seconds()
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
    if is_first:
        console.result(Console(highlight=False), result)
