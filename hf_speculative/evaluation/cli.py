"""The command `hf-speculative eval`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..command.arguments import DTYPES, check_device, check_dtype, check_outputs, naming
from ..command.interrupts import STOPPED, ends_at_once
from ..command.terminal import quiet_transformers
from ..reports import files
from .scores import SCORES

ADAPTIVE = "adaptive"


def eval_command(
    dataset: Annotated[
        str,
        typer.Option(
            help="A file (.jsonl, .txt, also .gz; .json, .csv, .tsv, .parquet), a folder, or a name on the Hub."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[
        list[str] | None, typer.Option(help="Draft: a Hub name or folder. Give it again for each further one.")
    ] = None,
    field: Annotated[
        str, typer.Option(help="The column with the prompts: texts, or lists of chat messages.")
    ] = "prompt",
    template: Annotated[
        str | None,
        typer.Option(help="In place of --field, a Jinja template over the columns: $'Q: {{ question }}\\nA:'."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of the data set, where it has several.")] = None,
    config: Annotated[str | None, typer.Option(help="Of a data set on the Hub with several.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows, from the start.")] = None,
    num_draft_tokens: Annotated[
        str, typer.Option(help=f"Draft lengths, with commas; {ADAPTIVE}: chosen each round, by measured cost.")
    ] = f"4,{ADAPTIVE}",
    prompt_lookup: Annotated[
        str | None, typer.Option(help="Also draft by copying from the text: up to so many tokens; with commas.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="How drafts are verified: token, block, sampled. By default what keeps most.")
    ] = None,
    temperature: Annotated[str, typer.Option(help="Temperatures, with commas; 0 is greedy.")] = "0",
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Sample among the k likeliest tokens only; 0 is off.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample among the likeliest tokens only, as many as it takes for their probabilities to add up to this.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens for each prompt.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a completion. May be given again.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    seed: Annotated[int, typer.Option(help="Of sampling, the same for every setting.")] = 0,
    score: Annotated[
        str | None, typer.Option(help=f"A task score: {', '.join(SCORES)}, or your own as module:function.")
    ] = None,
    references: Annotated[
        str | None, typer.Option(help="What the score compares with: a column, or a Jinja template.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Results as they come, a line a call. The same command again goes on from there.")
    ] = Path("eval.jsonl"),
    report: Annotated[Path | None, typer.Option(help="Write one HTML page: tables, pictures, coloured texts.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all totals to this file.")] = None,
    dtype: Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}. Default: as the weights are stored.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; by default cuda where there is one.")] = "",
) -> None:
    """Evaluate drafts on your own prompts: how much faster, at which draft length, with what kept and what changed.

    Nothing to download but your data:  hf-speculative eval --dataset prompts.jsonl

    Which draft, which length?  hf-speculative eval --dataset data.jsonl --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B
    --draft-model Qwen/Qwen3-1.7B --num-draft-tokens 2,4,8,adaptive --prompt-lookup 10 --temperature 0,0.7 --report eval.html

    Quality unchanged?  hf-speculative eval --dataset HumanEval.jsonl.gz --score pass@1 --stop $'\\ndef '

    Several GPUs, each with its own prompts:  accelerate launch -m hf_speculative eval --dataset data.jsonl ...

    Every setting decodes the same prompts as plain `generate`, in turn. Stop it at any time: the same command goes on where it
    was, and loses nothing. A row that cannot be used is recorded and skipped.
    """
    with ends_at_once():  # not above, as nothing that imports torch: `--help` answers at once
        from ..verification import rule_for
        from . import page, screen
        from .results import Evaluation
        from .run import evaluate

    err = Console(stderr=True, highlight=False)
    quiet_transformers()
    check_dtype(dtype)
    if template is not None and field != "prompt":
        raise ValueError("--field and --template both say where prompts come from: give one.")
    rule_for(rule)  # a wrong name is told now
    check_device(device)
    check_outputs(results=results, report=report, json=json_file)
    lengths = [None if part.strip() == ADAPTIVE else part for part in num_draft_tokens.split(",")]
    row_options: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "stop_strings": stop}
    with ends_at_once(), err.status("loading the models"):
        target, drafts, tokenizer = _load(model, draft_model, dtype, device)
    is_stopped, begun = False, time.time()
    try:
        evaluation = evaluate(
            target,
            drafts,
            dataset,
            tokenizer=tokenizer,
            prompt=field if template is None else template,
            split=split,
            config=config,
            limit=limit,
            num_draft_tokens=[
                None if length is None else _number("--num-draft-tokens", length, int) for length in lengths
            ],
            prompt_lookup_num_tokens=_numbers("--prompt-lookup", prompt_lookup, int),
            temperatures=_numbers("--temperature", temperature, float),
            options=None if rule is None else {"rule": rule},
            score=score,
            references=references,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            seed=seed,
            results=results,
            **{name: value for name, value in row_options.items() if value is not None},
        )
    except KeyboardInterrupt:
        is_stopped = True
        if not results.exists() or results.stat().st_mtime < begun:  # another run's, so far
            raise
        evaluation = Evaluation.load(results)
        err.print(
            Text(f"stopped; {results} has what was measured until then, and the same command goes on from there.")
        )
    if int(os.environ.get("RANK", "0")):
        return  # the first process tells
    screen.print_evaluation(Console(highlight=False), evaluation)
    err.print(Text(f"results: {results}"))
    if json_file is not None:
        files.write(json_file, json.dumps(evaluation.to_dict(), indent=1) + "\n")
    if report is not None:
        page.write(evaluation, report)
        err.print(Text(f"report: {report}"))
    if is_stopped:
        raise typer.Exit(STOPPED)  # scripts should not take a part for the whole


def _load(model: str | None, draft_models: list[str] | None, dtype: str, device: str):
    import torch
    from transformers import AutoTokenizer

    from ..embedded import embedded_pair
    from ..models.loading import auto_class_for, load_model

    if model is None and draft_models:
        raise ValueError("--draft-model is for a --model of your own: give both, or none for the embedded pair.")
    rank = os.environ.get("LOCAL_RANK", "0")
    place = device or (f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    if model is None:
        target, draft, tokenizer = embedded_pair(dtype=getattr(torch, dtype or "float32"))
        return target.to(place), {"draft": draft.to(place)}, tokenizer
    for name in draft_models or ():
        with naming("--draft-model", name):
            auto_class_for(name)  # a name that leads nowhere is met before the target takes minutes to load
    with naming("--model", model):
        target = load_model(model, dtype=getattr(torch, dtype) if dtype else "auto")
        tokenizer = AutoTokenizer.from_pretrained(model)
    return target.to(place), draft_models or None, tokenizer


def _numbers(option: str, text: str | None, kind) -> list:
    return [] if text is None else [_number(option, part, kind) for part in text.split(",")]


def _number(option: str, text: str, kind):
    try:
        return kind(text)
    except ValueError as error:
        also = f", or {ADAPTIVE}" if option == "--num-draft-tokens" else ""
        raise ValueError(f"{option} {text!r}: give a number{also}; several with commas between them.") from error
