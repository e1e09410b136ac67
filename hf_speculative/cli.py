"""The command `hf-speculative`. Importing it imports nothing heavy: help, version and completion answer at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .benchmark.cli import bench
from .command.arguments import DTYPES, check_dtype, help_line, help_of, load_pair
from .command.interrupts import ends_at_once
from .command.terminal import clean_exits, quiet_transformers
from .evaluation.cli import eval_command
from .hub import cli as hub
from .serving.chat import chat
from .serving.cli import serve
from .side_by_side.cli import generate
from .training.cli import train_command
from .version import __version__

if TYPE_CHECKING:
    from .compatibility import Compatibility

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


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
    """Speculative decoding for transformers: exact, batched, measured.

    Try it, nothing to download:  hf-speculative generate "def main():"
    """


def check(
    model: Annotated[
        str | None,
        typer.Argument(help="Target, the model whose text you want: a Hub name or folder. Default: the embedded pair."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Argument(help=help_line("draft_model", also="A Hub name or folder."))
    ] = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Check for sampling instead of greedy decoding. This matters if the vocabularies differ.",
        ),
    ] = False,
    dtype: Annotated[str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[
        str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ... Default: cuda if there is one.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Can this draft guess for this target?

    Says how each model's cache forgets rejected guesses, and proves it by comparing logits. Says how the draft's tokens become
    the target's. Exits with status 1 if the pair does not work.

    The embedded pair:  hf-speculative check

    Your own:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B
    """
    check_dtype(dtype)
    with ends_at_once(), Console(stderr=True).status("loading both models and comparing logits"):
        from . import compatibility

        quiet_transformers()
        target, draft, tokenizer, other = load_pair(model, draft_model, dtype, device, ("MODEL", "DRAFT_MODEL"))
        answer = compatibility.check(target, draft, tokenizer, other or tokenizer, do_sample=sample)
    if as_json:
        typer.echo(json.dumps(asdict(answer)))
    else:
        _print_answer(Console(), answer)
    if not answer:
        raise typer.Exit(1)


#: what the paths mean, printed with the answer
PATHS = {
    "ragged": "each row of a batch has its own length, so rows never wait for each other. The fast path.",
    "universal": "transformers' own cache is rolled back, and the rows of a batch share its length.",
}


def _print_answer(console: Console, answer: Compatibility) -> None:
    reports = {"target": answer.target} | ({"draft": answer.draft} if answer.draft is not None else {})
    table = Table("", "model", "path", "logits differ by")
    for role, report in reports.items():
        deviation = "" if report.deviation is None else f"{report.deviation:.1e}"
        table.add_row(role, report.name, report.path or "[red]none[/]", deviation)
    console.print(table)
    for path in dict.fromkeys(report.path for report in reports.values()):
        if path is not None:
            console.print(f"[bold]{path}[/]: {PATHS[path]}")
    for role, report in reports.items():
        if report.why is not None:
            console.print(Text(f"Why the {role} is not on the ragged path: it {report.why}."))
    console.print(
        "Logits: through the cache, with tokens taken back, against one plain pass; the largest difference, in standard "
        "deviations of the logits."
    )
    if answer.vocabulary is not None:
        strategy = f"; strategy: {answer.vocabulary.strategy}" if answer.vocabulary.strategy else ""
        console.print(Text(f"Vocabularies: {answer.vocabulary.reason}{strategy}."))
    console.print("[green]compatible[/]" if answer else Text.assemble(("not compatible", "red"), f": {answer.reason}"))


for _name, _command in (
    ("generate", generate),
    ("chat", chat),
    ("serve", serve),
    ("check", check),
    ("bench", bench),
    ("eval", eval_command),
    ("train", train_command),
    ("card", hub.card),
    ("export", hub.export),
    ("export-generate", hub.export_generate),
    ("export-vllm", hub.export_vllm),
):
    app.command(_name, help=help_of(_command))(clean_exits()(_command))
