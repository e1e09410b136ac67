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

from ..command.arguments import DTYPES, check_dtype, load_pair
from ..command.interrupts import STOPPED, ends_at_once
from ..command.terminal import quiet_transformers

#: prompts up to which texts are shown unasked
FEW = 4
#: timings that the default number of repeats gives at least
ENOUGH = 3


def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to go on with. Without any, they come from --prompts or from standard input."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: .txt (a line each), .jsonl, .csv, .parquet; .gz.")
    ] = None,
    column: Annotated[str, typer.Option("--field", help="The column of that file that holds the prompt.")] = "prompt",
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Go on with two prompts that are built in; on a terminal also without this option."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Target, the model whose text you want: a Hub name or folder. Default: the embedded pair."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Draft, a smaller model that guesses ahead: a Hub name or folder.")
    ] = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many tokens the draft guesses before the target checks them. By default chosen anew each time, by "
            "measured cost.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="How many tokens to generate for each prompt, at most.")
    ] = 96,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, help="0 always takes the likeliest token (greedy decoding); above 0, tokens are sampled."
        ),
    ] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest tokens only; 0 is off.")] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample among the likeliest tokens only, as many as it takes for their probabilities to add "
            "up to this; 1 is off.",
        ),
    ] = 1.0,
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible", help="Sample exactly the tokens that plain decoding samples under the same seed."
        ),
    ] = False,
    rule: Annotated[
        str | None, typer.Option(help="How drafts are verified: token, block, sampled. By default what keeps most.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What sampling starts from: the same seed gives the same texts again.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="How many prompts are decoded together.")] = 1,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"How often each prompt is decoded both ways, to tell a speedup from noise. By default as often as gives "
            f"{ENOUGH} timings: once for a file of prompts, {ENOUGH} times for a single one.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[
        str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ...; by default cuda where there is one.")
    ] = "",
    show_text: Annotated[
        bool | None, typer.Option(help=f"Print the texts, or do not; by default for up to {FEW} prompts.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line for each prompt, then one with the totals.")
    ] = False,
) -> None:
    """Generate text with a draft and without, and compare.

    The text appears as it is generated, with the draft tokens that the target accepted in colour. Then both ways decode the
    same prompts in turn, and a table says how long they took, how many guesses were accepted, and how much faster it was.

    Try it, nothing to download:  hf-speculative generate "def main():"

    Your own pair:  hf-speculative generate --model Qwen/Qwen2.5-7B --draft-model Qwen/Qwen2.5-0.5B "Once upon a time"

    A file of prompts:  hf-speculative generate --prompts HumanEval.jsonl.gz --batch-size 8

    Ctrl-C ends it early and shows what was measured until then.
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    check_dtype(dtype)
    if temperature == 0 and (top_k or top_p < 1 or reproducible):
        raise ValueError("--top-k, --top-p and --reproducible are for sampling: give a --temperature above 0.")
    with ends_at_once(), err.status("importing torch and transformers"):
        from ..call.draft_models import tokenizer_of_draft
        from ..verification import rule_for
        from . import screen
        from .comparison import Comparison, Runner
        from .prompts import batches, prompt_source, usable
    quiet_transformers()
    rule_for(rule)  # a wrong name is told now
    source = prompt_source(prompt, prompts, column, demo, err)
    total = sum(1 for p in source() if isinstance(p, str))
    with ends_at_once(), err.status("loading the models"):
        target, draft, tokenizer = load_pair(model, draft_model, dtype, device)
        other = tokenizer_of_draft(draft_model, tokenizer) if draft_model else None
    tokenizers = {} if other is None else {"tokenizer": tokenizer, "draft_tokenizer": other}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p} if temperature else {}
    run = Runner(
        target,
        draft,
        tokenizer,
        seed=seed,
        kwargs={"do_sample": False, "max_new_tokens": max_new_tokens} | sampling,
        speculative_kwargs={
            "num_draft_tokens": num_draft_tokens,
            "reproducible": reproducible or None,
            "rule": rule,
        }
        | tokenizers,
    )
    repeats = repeats or math.ceil(ENOUGH / math.ceil(total / batch_size))
    shows = not as_json and (total <= FEW if show_text is None else show_text)
    streams = shows and batch_size == 1
    if shows and out.is_terminal:
        out.print(screen.MEANING)
    comparison, is_stopped = Comparison(), False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # rich would send what is printed meanwhile, JSON for a file say, where the bar goes
    progress = Progress(*columns, console=err, transient=True, redirect_stdout=False)
    task = progress.add_task("decoding both ways", total=total * repeats)

    def decode(batch: list[str]) -> None:
        if streams:
            screen.print_text(out, batch[0], run.stream(batch[0]))
        if not comparison.pairs:
            with progress:
                run.warm_up(batch)
        for repeat in range(repeats):
            with progress:
                rows = run.compare(batch, comparison, again=repeat > 0)
                progress.advance(task, len(batch))
            if repeat == 0:
                show(batch, rows)

    def show(batch: list[str], rows: list[dict[str, Any]]) -> None:
        for text, row in zip(batch, rows, strict=True):
            if as_json:
                print(json.dumps({"prompt": text, **row["json"]}), flush=True)
            elif shows and not streams:
                screen.print_text(out, text, row["pieces"])

    try:
        for batch in batches(usable(source(), err), batch_size):
            try:
                decode(batch)
            except (ValueError, RuntimeError, IndexError) as error:  # this batch's own, the others go on
                skipped = f" {len(batch)} prompts from {batch[0][:40]!r} on: {error}"
                err.print(Text.assemble(("skipped", "yellow"), skipped))
    except KeyboardInterrupt:
        is_stopped = True
        err.print(f"\nstopped after {comparison.num_prompts} of {total} prompts")
    if comparison.num_prompts:
        is_exact = temperature == 0 or reproducible
        if as_json:
            print(json.dumps({"total": comparison.to_dict(num_draft_tokens, sampled=not is_exact)}), flush=True)
        else:
            screen.print_comparison(out, comparison, num_draft_tokens, is_exact)
    if is_stopped:
        raise typer.Exit(STOPPED)
    if not comparison.num_prompts:
        raise typer.Exit(1)
