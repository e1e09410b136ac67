"""The command `hf-speculative bench`."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ...call.option_table import checked
from ...command.arguments import (
    DTYPES,
    check_dtype,
    check_models,
    check_outputs,
    from_table,
    load_pair,
    numbers,
)
from ...command.interrupts import STOPPED, ends_at_once
from ...command.terminal import quiet_transformers
from ...reports import files
from ..bench import DEFAULT_METHODS, METHODS, sweep

# Nothing that imports torch: `--help` answers at once.
if TYPE_CHECKING:
    from ..bench import Pair
    from ..results import Evaluation

ADAPTIVE = "adaptive"


def bench(
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[str | None, from_table("draft_model", also="A Hub name or folder.")] = None,
    draft_tokens: Annotated[
        str,
        from_table("num_draft_tokens", also=f"Several with commas; {ADAPTIVE}: chosen each round, by measured cost."),
    ] = f"4,{ADAPTIVE}",
    batch: Annotated[str, typer.Option(help="Prompts decoded together.")] = "1",
    context: Annotated[str, typer.Option(help="Length of each prompt, in tokens.")] = "64",
    temperature: Annotated[str, typer.Option(help="0 is greedy.")] = "0",
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Measure all combinations of the lists. Default: one list at a time, the others at their first value.",
        ),
    ] = False,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens generated for each prompt.")] = 64,
    repeats: Annotated[int, typer.Option(min=2, help="Interleaved repeats, for medians with quartiles.")] = 3,
    methods: Annotated[
        str,
        typer.Option(
            help=f"Of: {', '.join(METHODS)}. Those that the pair has no draft for are left out.",
        ),
    ] = ",".join(DEFAULT_METHODS),
    dtype: Annotated[
        str, typer.Option(help=f"{', '.join(DTYPES)}. Default: float32, or as the weights are stored.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda if there is one.")] = "",
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results, one file for each batch size and context. The same command continues them."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write all tables to this file: Markdown if it ends in .md, else one HTML page.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this JSON file.")] = None,
    gpu_report: Annotated[
        bool,
        typer.Option(
            "--gpu-report",
            help="Print one table about this GPU, to paste into an issue: versions, equality, speed and memory in float32, "
            "float16 and bfloat16, eager, captured and compiled. Takes minutes.",
        ),
    ] = False,
    glossary: Annotated[bool, typer.Option("--glossary", help="Say below the tables what the figures mean.")] = False,
) -> None:
    """Measure how fast a pair decodes, against plain `generate` and transformers' assisted generation.

    Nothing to download:  hf-speculative bench

    Your own pair:  hf-speculative bench --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --batch 1,4

    Draft lengths, compiled as well:  hf-speculative bench --draft-tokens 2,4,6 --methods draft,compiled

    An HTML page and a JSON file:  hf-speculative bench --batch 1,2,4,8 --report bench.html --json bench.json

    Lists are written with commas. The first value of --batch, --context and --temperature is the base, and each further one is
    measured with the others at their base; --grid measures all combinations. All methods decode the same prompts in turn, after
    a warm-up that does not count. `noise` means faster than the number of target passes allows. Ctrl-C keeps what was measured.
    """
    check_models(model=model, draft_model=draft_model)
    check_dtype(dtype)
    check_outputs(json=json_file, report=report)
    with ends_at_once():  # not above, since it imports torch
        from .. import bench as benchmarks
        from ..render import page, screen
        from ..results import Evaluation

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    quiet_transformers()
    if gpu_report:
        if dtype:
            raise ValueError("--gpu-report measures all number formats: leave --dtype out.")
        _print_gpu_report(model, draft_model, device, err)
        return
    places = sweep(
        numbers("--batch", batch, int),
        numbers("--context", context, int),
        numbers("--temperature", temperature, float),
        grid,
    )
    lengths = numbers("--draft-tokens", draft_tokens, _length, also=f" or {ADAPTIVE}")
    lengths = [length if length is None else checked("num_draft_tokens", length) for length in lengths]
    with ends_at_once(), err.status("loading the models"):
        pair = _pair(model, draft_model, dtype, device)
    found: dict[str, Evaluation] = {}
    is_stopped = False
    with ExitStack() as stack:
        folder = results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files.make_folder("--results", folder)
        try:
            found |= benchmarks.bench(pair, places, methods.split(","), lengths, new_tokens, repeats, folder)
        except KeyboardInterrupt:
            is_stopped = True
        for place in places if is_stopped else ():
            path = benchmarks.file_of(folder, place)
            if path.exists():
                found[str(place)] = Evaluation.load(path)
    if not found:
        raise typer.Exit(STOPPED)
    screen.print_evaluation(out, found, glossary)
    if report is not None:
        page.write_report(found, report)
    if json_file is not None:
        files.write(json_file, json.dumps(page.to_dict(found), indent=1) + "\n")
    if is_stopped:
        err.print("stopped: this is what was measured so far.")
        raise typer.Exit(STOPPED)


def _length(text: str) -> int | None:
    return None if text.strip() == ADAPTIVE else int(text)


def _print_gpu_report(model: str | None, draft_model: str | None, device: str, console: Console) -> None:
    import torch

    from .. import gpu_report

    if torch.device(device or "cuda").type != "cuda" or not torch.cuda.is_available():
        raise ValueError("--gpu-report is about a GPU, and torch finds none: leave it out to measure this machine.")
    dtypes = [str(dtype).removeprefix("torch.") for dtype in gpu_report.DTYPES]
    with console.status("loading the models") as status:
        pairs = (_pair(model, draft_model, dtype, device or "cuda:0") for dtype in dtypes)
        typer.echo(gpu_report.text(pairs, say=status.update))


def _pair(model: str | None, draft_model: str | None, dtype: str, device: str) -> Pair:
    from ...embedded import HEAD
    from ...models.loading import load_model
    from ..bench import Pair

    target, draft, tokenizer, draft_tokenizer = load_pair(model, draft_model, dtype, device)
    assert draft is not None  # `load_pair` needs one
    head = {} if model is not None else {"head": load_model(HEAD, dtype=target.dtype).to(target.device)}
    return Pair(target, {"draft": draft, **head}, tokenizer, draft_tokenizer)
