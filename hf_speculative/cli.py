"""The command `hf-speculative`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from . import compatibility, embedded
from .arguments import check_device, help_of
from .benchmark.cli import bench
from .comparison import Comparison, Runner
from .environment import DTYPES
from .evaluation.cli import eval_command
from .evaluation.journal import BadRow
from .evaluation.rows import read_texts
from .hub import cli as hub
from .loading import load_model

app = typer.Typer(
    help="Speculative decoding for transformers: exact, batched, measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
DEMO_PROMPTS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
)


@app.callback()
def root() -> None:
    """Speculative decoding for transformers: exact, batched, measured."""


@contextmanager
def _clean_errors() -> Iterator[None]:
    """What a user can mend is a message, not a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)))
        raise typer.Exit(2) from error


@app.command()
def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts. Without any: --prompts, or standard input.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: .txt (a line each), .jsonl, .csv, .parquet; .gz.")
    ] = None,
    column: Annotated[str, typer.Option("--field", help="The column that holds the prompt.")] = "prompt",
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft: a Hub name or folder.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to draft a round. By default chosen each round, by measured cost.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each prompt.")] = 96,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 is greedy decoding; above it, tokens are sampled.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k likeliest tokens only; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample from the likeliest p of the mass only.")] = 1.0,
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Sample exactly the tokens that plain decoding samples under the seed."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; by default cuda where there is one.")] = "",
    show_text: Annotated[
        bool | None, typer.Option(help="Print the texts; by default for a handful of prompts.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON line for each prompt, then one with the totals.")
    ] = False,
) -> None:
    """Generate text with a draft and without, side by side.

    Accepted draft tokens are coloured; then come time, tokens per second, acceptance, and what theory predicts.

    Try it, nothing to download:  hf-speculative generate "def main():"

    Your own pair:  hf-speculative generate --model Qwen/Qwen2.5-7B --draft-model Qwen/Qwen2.5-0.5B "Once upon a time"

    A file of prompts:  hf-speculative generate --prompts HumanEval.jsonl.gz --batch-size 8
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # of loading weights; ours are about prompts
    with _clean_errors():
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}.")
        if temperature == 0 and (top_k or top_p < 1 or reproducible):
            raise ValueError("--top-k, --top-p and --reproducible are for sampling: give a --temperature above 0.")
        source = _prompt_source(prompt, prompts, column, embedded_pair=model is None)
        target, draft, tokenizer = _load(model, draft_model, DTYPES[dtype], device)
        total = sum(1 for p in source() if isinstance(p, str))
        if total == 0:
            raise ValueError("no prompt to work on: every line is empty or broken.")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p} if temperature else {}
    run = Runner(
        target,
        draft,
        tokenizer,
        seed=seed,
        kwargs={"do_sample": False, "max_new_tokens": max_new_tokens} | sampling,
        speculative_kwargs={"num_draft_tokens": num_draft_tokens, "reproducible": reproducible or None},
    )
    show = total <= 4 if show_text is None else show_text
    comparison = Comparison()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with _clean_errors(), Progress(*columns, console=err, transient=True, disable=total <= batch_size) as progress:
            task = progress.add_task("prompts", total=total)
            run.warm_up(next(p for p in source() if isinstance(p, str)))
            remaining = source()
            while batch := list(islice(_without_broken(remaining, err), batch_size)):
                progress.update(task, advance=len(batch))
                try:
                    results = run.compare(batch, comparison)
                except (ValueError, RuntimeError, IndexError) as error:  # this batch's own, the others go on
                    err.print(f"[yellow]skipped[/] {len(batch)} prompts from {batch[0][:40]!r} on: {error}")
                    continue
                for text, result in zip(batch, results, strict=True):
                    if as_json:
                        print(json.dumps({"prompt": text, **result["json"]}), flush=True)
                    elif show:
                        out.print(Text(text, style="dim"), result["text"], Text("\n"), sep="")
    except KeyboardInterrupt:
        err.print(f"stopped after {comparison.num_prompts} of {total} prompts; this is what they gave:")
    if comparison.num_prompts == 0:
        raise typer.Exit(1)
    is_exact = temperature == 0 or reproducible
    if as_json:
        print(json.dumps({"total": comparison.to_dict(num_draft_tokens, sampled=not is_exact)}), flush=True)
    else:
        _print_table(out, comparison, num_draft_tokens, is_exact)


@app.command()
def check(
    model: Annotated[
        str | None, typer.Argument(help="Target: a Hub name or folder. Default: the embedded pair.")
    ] = None,
    draft_model: Annotated[str | None, typer.Argument(help="Draft: a Hub name or folder.")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="For sampling: another strategy may fit vocabularies.")
    ] = False,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; by default cuda where there is one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> None:
    """Can the draft draft for the target? By which path, with which vocabulary strategy, and why.

    Both caches are tried, by comparing logits. Exits with 1 if the pair does not work.

        hf-speculative check
        hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B
    """
    with _clean_errors():
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}.")
        with Console(stderr=True).status("loading both models and comparing logits"):
            target, draft, tokenizer = _load(model, draft_model, DTYPES[dtype], device)
            draft_tokenizer = AutoTokenizer.from_pretrained(draft_model) if draft_model else tokenizer
            answer = compatibility.check(target, draft, tokenizer, draft_tokenizer, do_sample=sample)
    if as_json:
        typer.echo(json.dumps(asdict(answer)))
    else:
        _print_answer(Console(), answer)
    if not answer:
        raise typer.Exit(1)


for _name, _command in (
    ("bench", bench),
    ("eval", eval_command),
    ("card", hub.card),
    ("export-generate", hub.export_generate),
    ("export-vllm", hub.export_vllm),
):
    app.command(_name, help=help_of(_command))(_clean_errors()(_command))


def _print_answer(console: Console, answer: compatibility.Compatibility) -> None:
    table = Table("", "model", "path", "logits differ by", "because it", title_justify="left")
    for role, report in (("target", answer.target), ("draft", answer.draft)):
        if report is not None:
            deviation = "" if report.deviation is None else f"{report.deviation:.1e} deviations"
            table.add_row(role, report.name, report.path or "[red]none[/]", deviation, report.why or "")
    console.print(table)
    if answer.vocabulary is not None:
        console.print(f"vocabulary strategy: [bold]{answer.vocabulary.strategy}[/]; {answer.vocabulary.reason}")
    console.print("[green]compatible[/]" if answer else f"[red]not compatible[/]: {answer.reason}")


def _without_broken(prompts: Iterator[str | BadRow], console: Console) -> Iterator[str]:
    for prompt in prompts:
        if isinstance(prompt, BadRow):
            console.print(f"[yellow]skipped[/] row {prompt.index}: {prompt.message}")
        else:
            yield prompt


def _prompt_source(given: list[str] | None, path: Path | None, column: str, embedded_pair: bool):
    """A function that starts over on the prompts each time it is called."""
    if given and path:
        raise ValueError("prompts as arguments and --prompts are two sources: give one.")
    if path is not None:
        if not path.is_file():
            raise ValueError(f"--prompts {path}: no such file.")
        texts = read_texts(path, column)
        return lambda: iter(texts)
    if not given and not sys.stdin.isatty():
        given = [sys.stdin.read()]
    if not given or not any(given):
        if not embedded_pair:
            raise ValueError("no prompt: give one as an argument, on standard input, or a file with --prompts.")
        given = list(DEMO_PROMPTS)
    return lambda: iter(given)


def _load(model: str | None, draft_model: str | None, dtype: torch.dtype, device: str):
    if (model is None) != (draft_model is None):
        raise ValueError("--model and --draft-model go together: give both, or none for the embedded pair.")
    check_device(device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if model is None or draft_model is None:
        target, draft, tokenizer = embedded.embedded_pair(dtype=dtype)
    else:
        target, draft = (load_model(name, dtype=dtype) for name in (model, draft_model))
        tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return target.to(device), draft.to(device), tokenizer


def _print_table(console: Console, comparison: Comparison, num_draft_tokens: int | None, is_exact: bool) -> None:
    stats = comparison.statistics
    length = (
        "draft length chosen each round" if num_draft_tokens is None else f"{num_draft_tokens} draft tokens a round"
    )
    table = Table(title=f"{comparison.num_prompts} prompts, {length}", title_justify="left")
    table.add_column("")
    for name in ("plain", "speculative"):
        table.add_column(name, justify="right")
    table.add_row("time", f"{comparison.plain_seconds:.2f} s", f"{comparison.speculative_seconds:.2f} s")
    table.add_row("new tokens", str(comparison.num_plain_tokens), str(stats.num_new_tokens))
    speeds = [f"{comparison.tokens_per_second(which):.1f}" for which in ("plain", "speculative")]
    table.add_row("tokens per second", *speeds)
    table.add_row("target passes", str(comparison.num_plain_steps), str(stats.num_target_forwards))
    table.add_section()
    table.add_row("speedup", "1.00x", f"[bold]{comparison.speedup:.2f}x[/]")
    predicted = comparison.predicted_speedup(num_draft_tokens)
    if predicted is not None:
        table.add_row("predicted by theory", "", f"{predicted:.2f}x")
    table.add_row("draft tokens accepted", "", f"{stats.draft_acceptance_rate:.1%}")
    table.add_row("mean acceptance length", "", f"{stats.mean_acceptance_length:.2f}")
    console.print(table)
    console.print("[green]green[/]: draft tokens the target accepted; [bold]bold[/]: tokens the target added.")
    prediction = "" if predicted is None else " Prediction: Leviathan et al., Theorem 3.8."
    console.print(f"Mean acceptance length counts the token that the target adds.{prediction}")
    if is_exact:
        same, total = comparison.num_identical, comparison.num_prompts
        console.print(f"Identical to plain decoding: [bold]{same} of {total}[/] texts.")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
