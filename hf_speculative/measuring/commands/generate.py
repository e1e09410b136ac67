"""The command `hf-speculative generate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ...call.option_table import DRAFTS, ROWS
from ...command.arguments import (
    DTYPES,
    check_dtype,
    check_file,
    check_models,
    from_table,
    load_pair,
    with_drafting_options,
)
from ...command.interrupts import STOPPED, ends_at_once
from ...command.terminal import quiet_transformers

#: texts are shown by default for up to so many prompts
FEW = 4
#: the default number of repeats gives at least so many timings
ENOUGH = 3


@with_drafting_options("num_draft_tokens")
def generate(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prompts: texts to continue. Without any, they come from --prompts or from standard input."
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: .txt (one a line), .jsonl, .csv, .parquet; also as .gz.")
    ] = None,
    column: Annotated[str, typer.Option("--field", help="The column of that file that holds the prompt.")] = "prompt",
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Show three answers of a chat model, plain and speculative side by side."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Target, the model whose text you want: a Hub name or folder. Default: the embedded pair."),
    ] = None,
    draft_model: Annotated[str | None, from_table("draft_model", also="A Hub name or folder.")] = None,
    num_draft_tokens: Annotated[int | None, from_table("num_draft_tokens")] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="How many tokens to generate for each prompt, at most.")
    ] = 96,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, help="0 always takes the likeliest token (greedy decoding); above 0, tokens are sampled."
        ),
    ] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample only among the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample only among the likeliest tokens whose probabilities add up to this; 1 is off.",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed for sampling: the same seed gives the same texts again.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="How many prompts are decoded together.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"How often each prompt is decoded both ways, to tell a speedup from noise. Default: as often as gives "
            f"{ENOUGH} timings, that is once for a file of prompts and {ENOUGH} times for a single one.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[
        str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ... Default: cuda if there is one.")
    ] = "",
    show_text: Annotated[
        bool | None, typer.Option(help=f"Whether to print the texts. Default: for up to {FEW} prompts.")
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Continue the text of a prompt as it is, where the model has a chat template. Default: answer it.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line for each prompt, then one with the totals.")
    ] = False,
    glossary: Annotated[bool, typer.Option("--glossary", help="Say below the table what the figures mean.")] = False,
    *,
    drafting: dict[str, Any],
) -> None:
    """Generate text with a draft and without, and compare.

    The text appears as it is generated, with the draft tokens that the target accepted in colour. Then both ways decode the
    same prompts in turn, and a table says how long they took, how many guesses were accepted, and how much faster it was.

    Try it, nothing to download:  hf-speculative generate "def main():"

    Your own pair:  hf-speculative generate --model Qwen/Qwen2.5-7B --draft-model Qwen/Qwen2.5-0.5B "Once upon a time"

    Without a draft model:  hf-speculative generate --model Qwen/Qwen2.5-7B "Once upon a time"

    A chat model of 135 million weights:  hf-speculative generate --model smollm2 "What is a hash table?"

    A file of prompts:  hf-speculative generate --prompts HumanEval.jsonl.gz --batch-size 8

    Ctrl-C ends it early and shows what was measured so far.
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    check_dtype(dtype)
    if demo:
        given = _given(context)
        if idle := [
            f"--{name.replace('_', '-')}" for name in given if name not in ("demo", "max_new_tokens", "repeats")
        ]:
            raise ValueError(f"{', '.join(idle)} beside --demo, which has models, prompts and settings of its own.")
        with ends_at_once(), err.status("importing torch and transformers"):
            from . import demo as demonstration
        quiet_transformers()
        num_tokens = max_new_tokens if "max_new_tokens" in given else demonstration.NUM_TOKENS
        with ends_at_once(), err.status("loading the models"):
            stage = demonstration.stage()
        demonstration.show(out, stage, num_tokens, repeats or demonstration.REPEATS)
        return
    check_models(model=model, draft_model=draft_model)
    if not prompt:  # else there are two sources, which is said below
        check_file("--prompts", prompts)
    if temperature == 0 and (top_k or top_p < 1 or drafting.get("reproducible")):
        raise ValueError("--top-k, --top-p and --reproducible are for sampling: give a --temperature above 0.")
    with ends_at_once(), err.status("importing torch and transformers"):
        from ..comparison import Comparison
        from ..journal import BadRow
        from ..render import screen
        from ..settings import Setting
        from .prompts import batches, prompt_source, shown, usable
    quiet_transformers()
    names_source = any(ROWS[name].is_source for name in drafting)
    if model is not None and draft_model is None and not names_source:
        draft_model = "auto"
    if draft_model is not None and DRAFTS.is_method(draft_model):
        drafting["draft_model"], names_source = draft_model, True
    elif draft_model is not None or not names_source:
        drafting["draft_model"] = "draft"
    setting = Setting(num_draft_tokens=num_draft_tokens, temperature=temperature, **drafting)
    source = prompt_source(prompt, prompts, column, err)
    total = sum(1 for p in source() if not isinstance(p, BadRow))
    with ends_at_once(), err.status("loading the models"):
        target, draft, tokenizer, other = load_pair(
            model, draft_model, dtype, device, needs_draft=not names_source, head=True
        )
    sampling = {"top_k": top_k, "top_p": top_p} if temperature else {}
    repeats = repeats or math.ceil(ENOUGH / math.ceil(total / batch_size))
    comparison = Comparison(
        target,
        draft,
        tokenizer,
        other,
        setting,
        num_prompts=total,
        batch_size=batch_size,
        repeats=repeats,
        seed=seed,
        is_chat=tokenizer.chat_template is not None and not raw,
        max_new_tokens=max_new_tokens,
        **sampling,
    )
    shows = not as_json and (total <= FEW if show_text is None else show_text)
    streams = shows and batch_size == 1
    if shows and out.is_terminal:
        out.print(screen.MEANING)
    is_stopped = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # rich would send what is printed meanwhile, JSON for a file say, where the bar goes
    progress = Progress(*columns, console=err, transient=True, redirect_stdout=False)
    task = progress.add_task("decoding both ways", total=total)

    def decode(batch: list) -> None:
        if streams:
            screen.print_text(out, shown(batch[0]), comparison.stream(batch[0]))
        with progress:
            if not comparison.num_prompts:
                comparison.warm_up(batch)
            rows = comparison.compare(batch)
            progress.advance(task, len(batch))
        for text, row in zip(batch, rows, strict=True):
            if as_json:
                print(json.dumps({"prompt": text, **row["json"]}), flush=True)
            elif shows and not streams:
                screen.print_text(out, shown(text), row["pieces"])

    try:
        for batch in batches(usable(source(), err), batch_size):
            try:
                decode(batch)
            except (ValueError, RuntimeError, IndexError) as error:  # an error of this batch; the others continue
                skipped = f" {len(batch)} prompts from {shown(batch[0])[:40]!r} on: {error}"
                err.print(Text.assemble(("skipped", "yellow"), skipped))
    except KeyboardInterrupt:
        is_stopped = True
    evaluation = comparison.evaluation
    totals = evaluation.totals(setting)
    if is_stopped:
        err.print(f"\nstopped after {totals.num_prompts} of {total} prompts")
    if totals.num_prompts:
        if as_json:
            plain = evaluation.totals(setting.baseline).to_dict()
            print(json.dumps({"total": totals.to_dict() | {"plain": plain}}), flush=True)
        else:
            screen.print_evaluation(out, evaluation, glossary)
    if is_stopped:
        raise typer.Exit(STOPPED)
    if not totals.num_prompts:
        raise typer.Exit(1)


def _given(context: typer.Context) -> list[str]:
    """The options that the command line names."""
    found = ((name, context.get_parameter_source(name)) for name in context.params)
    return [name for name, source in found if source is not None and source.name != "DEFAULT"]
