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

from ...call.option_table import DRAFTS, ROWS
from ...command.arguments import (
    DTYPES,
    check_data,
    check_device,
    check_dtype,
    check_models,
    check_outputs,
    from_table,
    load_target,
    naming,
    numbers,
    with_drafting_options,
)
from ...command.interrupts import STOPPED, ends_at_once
from ...command.terminal import quiet_transformers
from ...names import place_of
from ...reports import files
from ..scores import SCORES

ADAPTIVE = "adaptive"


@with_drafting_options("num_draft_tokens", "prompt_lookup_num_tokens", several=True)
def eval_command(
    dataset: Annotated[
        str,
        typer.Option(
            help="A file (.jsonl, .txt, also .gz; .json, .csv, .tsv, .parquet), a folder, or a name on the Hub."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[
        list[str] | None,
        from_table("draft_model", also="Repeat the option for several to compare."),
    ] = None,
    field: Annotated[
        str, typer.Option(help="The column with the prompts: texts, or lists of chat messages.")
    ] = "prompt",
    template: Annotated[
        str | None,
        typer.Option(help="A Jinja template over the columns, instead of --field: $'Q: {{ question }}\\nA:'."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of the data set to use, such as test. Needed if there are several.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="Which configuration to use of a data set on the Hub. Needed if there are several."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first so many rows.")] = None,
    num_draft_tokens: Annotated[
        str,
        from_table("num_draft_tokens", also=f"Several with commas; {ADAPTIVE}: chosen each round, by measured cost."),
    ] = f"4,{ADAPTIVE}",
    prompt_lookup: Annotated[
        str | None, from_table("prompt_lookup_num_tokens", "--prompt-lookup", also="Several with commas.")
    ] = None,
    temperature: Annotated[str, typer.Option(help="Temperatures, separated by commas; 0 is greedy decoding.")] = "0",
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Sample only among the k likeliest tokens; 0 is off.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Sample only among the likeliest tokens whose probabilities add up to this; 1 is off.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens to generate for each prompt.")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text that ends a completion. Repeat the option for several.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed for sampling, the same for every setting.")] = 0,
    score: Annotated[
        str | None, typer.Option(help=f"A task score: {', '.join(SCORES)}, or your own as module:function.")
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(help="What the score compares texts with: a column, or a Jinja template over the columns."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="File of results, one line for each call. The same command continues an existing file.")
    ] = Path("eval.jsonl"),
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write a report to this file: Markdown if it ends in .md, else one HTML page with plots and texts."
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all totals to this JSON file.")] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a line for each prompt under each setting to this CSV file.")
    ] = None,
    glossary: Annotated[bool, typer.Option("--glossary", help="Say below the tables what the figures mean.")] = False,
    dtype: Annotated[
        str, typer.Option(help=f"{', '.join(DTYPES)}. Default: the format in which the weights are stored.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda if there is one.")] = "",
    *,
    drafting: dict[str, Any],
) -> None:
    """Evaluate drafts on your own prompts: which draft, at which draft length, how much faster, and is the text the same?

    Nothing to download but your data:  hf-speculative eval --dataset prompts.jsonl

    Which draft, which length?  hf-speculative eval --dataset data.jsonl --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B
    --draft-model Qwen/Qwen3-1.7B --num-draft-tokens 2,4,8,adaptive --prompt-lookup 10 --temperature 0,0.7 --report eval.html

    Without a draft model?  hf-speculative eval --dataset data.jsonl --model Qwen/Qwen3-8B --draft-model auto
    --assistant-early-exit 8

    Quality unchanged?  hf-speculative eval --dataset HumanEval.jsonl.gz --score pass@1 --stop $'\\ndef '

    Several GPUs, each with its own prompts:  accelerate launch -m hf_speculative eval --dataset data.jsonl ...

    Every setting decodes the same prompts as plain `generate`, in turn. You may stop at any time: the same command continues
    where it stopped. A row that cannot be used is recorded and skipped.
    """
    check_outputs(results=results, report=report, json=json_file, csv=csv_file)
    check_data("--dataset", dataset)
    check_models(model=model, draft_model=draft_model)
    with ends_at_once():  # not above, since it imports torch: `--help` answers at once
        from ..render import page, screen
        from ..results import Evaluation
        from ..run import evaluate

    err = Console(stderr=True, highlight=False)
    quiet_transformers()
    check_dtype(dtype)
    if template is not None and field != "prompt":
        raise ValueError("--field and --template both say where prompts come from: give one.")
    check_device(device)
    lengths = numbers("--num-draft-tokens", num_draft_tokens, _length, also=f" or {ADAPTIVE}")
    if prompt_lookup is not None:
        drafting["prompt_lookup_num_tokens"] = numbers("--prompt-lookup", prompt_lookup, int)
    named = {name: value for name, value in drafting.items() if ROWS[name].is_source}
    sources: dict[str, Any] = {n: value if isinstance(value, list) else [value] for n, value in named.items()}
    options = {name: value for name, value in drafting.items() if name not in sources}
    temperatures = numbers("--temperature", temperature, float)
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
            num_draft_tokens=lengths,
            temperatures=temperatures,
            options=options,
            score=score,
            references=references,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            seed=seed,
            results=results,
            **sources,
            **{name: value for name, value in row_options.items() if value is not None},
        )
    except KeyboardInterrupt:
        is_stopped = True
        if not results.exists() or results.stat().st_mtime < begun:  # another run's, so far
            raise
        evaluation = Evaluation.load(results)
        err.print(Text(f"stopped; {results} has what was measured so far, and the same command continues from there."))
    if int(os.environ.get("RANK", "0")):
        return  # the first process prints
    screen.print_evaluation(Console(highlight=False), evaluation, glossary)
    err.print(Text(f"results: {results}"))
    if json_file is not None:
        files.write(json_file, json.dumps(evaluation.to_dict(), indent=1) + "\n")
    if csv_file is not None:
        evaluation.to_csv(csv_file, by="prompt")
        err.print(Text(f"figures of each prompt: {csv_file}"))
    if report is not None:
        page.write_report(evaluation, report)
        err.print(Text(f"report: {report}"))
    if is_stopped:
        raise typer.Exit(STOPPED)  # scripts must not take a part for the whole


def _load(model: str | None, draft_models: list[str] | None, dtype: str, device: str):
    import torch

    from ...drafting.tables import holds_tables
    from ...embedded import embedded_pair
    from ...models.loading import check_name

    methods = [name for name in draft_models or () if DRAFTS.is_method(name)]
    if model is None and draft_models and len(methods) < len(draft_models):
        raise ValueError("--draft-model needs a --model: name one, or `--model embedded` for the embedded target.")
    rank = os.environ.get("LOCAL_RANK", "0")
    place = device or (f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    if model is None:
        target, draft, tokenizer = embedded_pair(dtype=getattr(torch, dtype or "float32"))
        return target.to(place), methods or {"draft": draft.to(place)}, tokenizer
    draft_models = [place_of(name) for name in draft_models or ()]
    for name in draft_models:
        if DRAFTS.is_method(name) or holds_tables(name):
            continue
        with naming("--draft-model", name):
            check_name(name)  # a wrong name is found before the target takes minutes to load
    target, tokenizer = load_target("--model", model, dtype, place)
    return target, draft_models or None, tokenizer


def _length(text: str) -> int | None:
    return None if text.strip() == ADAPTIVE else int(text)
