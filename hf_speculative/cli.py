"""The command `hf-speculative`. Importing it imports nothing heavy: help, version and completion answer at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .arguments import DTYPES, check_dtype, help_of, load_pair
from .benchmark.cli import bench
from .evaluation.cli import eval_command
from .hub import cli as hub
from .interrupts import ends_at_once
from .side_by_side.cli import generate
from .terminal import clean_exits

if TYPE_CHECKING:
    from .compatibility import Compatibility

app = typer.Typer(
    help="Speculative decoding for transformers: exact, batched, measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"hf-speculative {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Speculative decoding for transformers: exact, batched, measured."""


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
    check_dtype(dtype)
    with Console(stderr=True).status("loading both models and comparing logits"), ends_at_once():
        from transformers import AutoTokenizer

        from . import compatibility

        target, draft, tokenizer = load_pair(model, draft_model, dtype, device)
        draft_tokenizer = AutoTokenizer.from_pretrained(draft_model) if draft_model else tokenizer
        answer = compatibility.check(target, draft, tokenizer, draft_tokenizer, do_sample=sample)
    if as_json:
        typer.echo(json.dumps(asdict(answer)))
    else:
        _print_answer(Console(), answer)
    if not answer:
        raise typer.Exit(1)


def _print_answer(console: Console, answer: Compatibility) -> None:
    table = Table("", "model", "path", "logits differ by", "because it", title_justify="left")
    for role, report in (("target", answer.target), ("draft", answer.draft)):
        if report is not None:
            deviation = "" if report.deviation is None else f"{report.deviation:.1e} deviations"
            table.add_row(role, report.name, report.path or "[red]none[/]", deviation, report.why or "")
    console.print(table)
    if answer.vocabulary is not None:
        console.print(f"vocabulary strategy: [bold]{answer.vocabulary.strategy}[/]; {answer.vocabulary.reason}")
    console.print("[green]compatible[/]" if answer else f"[red]not compatible[/]: {answer.reason}")


for _name, _command in (
    ("generate", generate),
    ("check", check),
    ("bench", bench),
    ("eval", eval_command),
    ("card", hub.card),
    ("export-generate", hub.export_generate),
    ("export-vllm", hub.export_vllm),
):
    app.command(_name, help=help_of(_command))(clean_exits()(_command))
