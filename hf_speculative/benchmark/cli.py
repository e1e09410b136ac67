"""The command `hf-speculative bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..call.option_table import checked
from ..command.arguments import (
    DTYPES,
    check_device,
    check_dtype,
    check_models,
    check_outputs,
    from_table,
    load_pair,
    numbers,
)
from ..command.interrupts import STOPPED, ends_at_once
from ..command.terminal import quiet_transformers
from ..reports import files
from .cells import sweep
from .methods import DEFAULT_METHODS, METHODS, WITH_HEADS
from .shapes import SHAPES

# Nothing that imports torch: `--help` answers at once.
if TYPE_CHECKING:
    from .pairs import Pair
    from .results import Report


def bench(
    shape: Annotated[
        str | None,
        typer.Option(
            help=f"A pair with random weights, nothing to download: {', '.join(SHAPES)}. Or: embedded, the default."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder, instead of a shape.")] = None,
    draft_model: Annotated[str | None, from_table("draft_model", also="A Hub name or folder.")] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            help="Acceptance that a shape is calibrated to, from 0 (the draft is hardly ever right) to 1 (always)."
        ),
    ] = "0.8",
    draft_is_target: Annotated[
        bool,
        typer.Option(
            "--draft-is-target",
            help="Use the shape's target as its own draft: everything is accepted, at the target's cost.",
        ),
    ] = False,
    draft_tokens: Annotated[str, from_table("num_draft_tokens", also="Several with commas.")] = "4",
    batch: Annotated[str, typer.Option(help="Rows decoded together.")] = "1",
    context: Annotated[str, typer.Option(help="Length of each prompt, in tokens.")] = "64",
    temperature: Annotated[str, typer.Option(help="0 is greedy.")] = "0",
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Measure all combinations of the lists. Default: one list at a time, the others at their first value.",
        ),
    ] = False,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated for each row.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats, for medians; a single one gives no verdict.")] = 3,
    methods: Annotated[
        str,
        typer.Option(
            help=f"Of: {', '.join(METHODS)}. Default: {','.join(DEFAULT_METHODS)}, and head-eagle3 with the embedded pair."
        ),
    ] = "",
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Also measure compiled plain (with a static cache) and speculative decoding; compiling takes minutes.",
        ),
    ] = False,
    dtype: Annotated[
        str, typer.Option(help=f"{', '.join(DTYPES)}. Default: bfloat16 if the hardware supports it.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda if there is one.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write plots into this folder. Needs the extra `plot`.")] = None,
    gpu_report: Annotated[
        bool,
        typer.Option(
            "--gpu-report",
            help="Print one table about this GPU, to paste into an issue: versions, equality, speed and memory in float32, "
            "float16 and bfloat16, eager, captured and compiled. Takes minutes; with the embedded pair, or --model.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page with tables and plots to this file.")] = None,
    glossary: Annotated[bool, typer.Option("--glossary", help="Say below the tables what the figures mean.")] = False,
) -> None:
    """Measure how fast a pair decodes, against plain `generate`, transformers' assisted generation, and theory.

    Nothing to download:  hf-speculative bench

    A 1.1B model whose draft is right 80 % of the time:  hf-speculative bench --shape tinyllama-1.1b --acceptance 0.8

    Batches and draft lengths, one list at a time:  hf-speculative bench --shape gpt2-xl --batch 1,2,4 --draft-tokens 4,2,6

    A draft that is hardly ever right, to see what it costs:  hf-speculative bench --shape tinyllama-1.1b --acceptance 0

    Your own pair:  hf-speculative bench --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --batch 1,4

    An HTML page and a JSON file:  hf-speculative bench --batch 1,2,4,8 --report bench.html --json bench.json

    Lists are written with commas: --acceptance, --draft-tokens, --batch, --context, --temperature. The first value of each is
    the base, and each further one is measured with all other lists at their base; --grid measures all combinations. All
    methods run in turn on the same prompts, with a warm-up that does not count. LOSS means slower than plain decoding, or than
    assisted generation, beyond the spread of the repeats; noise means faster than the number of target passes allows. Ctrl-C
    keeps what was measured.
    """
    check_models(model=model, draft_model=draft_model)
    with ends_at_once():
        from ..reports import plotting
        from . import screen
        from .measure import run

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    quiet_transformers()
    if gpu_report:
        if shape not in (None, "embedded") or dtype:
            raise ValueError(
                "--gpu-report takes the embedded pair, or --model with --draft-model, in all number formats."
            )
        _print_gpu_report(model, draft_model, device, err)
        return
    if plot is not None:
        plotting.require()
        files.check_folder("--plot", plot)
    check_outputs(json=json_file, report=report)
    is_shape = model is None and draft_model is None and shape not in (None, "embedded")
    cells = sweep(
        batch=numbers("--batch", batch, int),
        num_draft_tokens=[checked("num_draft_tokens", n) for n in numbers("--draft-tokens", draft_tokens, int)],
        context=numbers("--context", context, int),
        acceptance=numbers("--acceptance", acceptance, float) if is_shape else [None],
        temperature=numbers("--temperature", temperature, float),
        grid=grid,
    )
    with ends_at_once(), err.status("building the pair"):
        pair = _pair(shape, model, draft_model, dtype, device, draft_is_target)
    chosen = methods.split(",") if methods else [*(WITH_HEADS if pair.heads else DEFAULT_METHODS)]
    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        result = run(
            pair,
            cells,
            methods=[*chosen, *(["plain-compiled", "speculative-compiled"] if compiled else [])],
            num_new_tokens=new_tokens,
            repeats=repeats,
            watch=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            on_cell=lambda cell, so_far: screen.print_cell(out, cell, so_far),
        )
    if result.is_interrupted:
        err.print(f"stopped; measured so far: {len(result.cells)} of {len(cells)} cells.")
    screen.print_summary(out, result, glossary)
    _write(result, json_file, plot, report, err)
    if result.is_interrupted:
        raise typer.Exit(STOPPED)
    if not result.cells:
        raise typer.Exit(1)


def _print_gpu_report(model: str | None, draft_model: str | None, device: str, console: Console) -> None:
    import torch

    from . import gpu_report

    if torch.device(device or "cuda").type != "cuda" or not torch.cuda.is_available():
        raise ValueError("--gpu-report is about a GPU, and torch finds none: leave it out to measure this machine.")
    dtypes = [str(dtype).removeprefix("torch.") for dtype in gpu_report.DTYPES]
    with console.status("building the pair") as status:
        pairs = (_pair(None, model, draft_model, dtype, device or "cuda:0", False) for dtype in dtypes)
        typer.echo(gpu_report.markdown(pairs, say=status.update))


def _write(result: Report, json_file: Path | None, plot: Path | None, report: Path | None, console: Console) -> None:
    from ..reports import plotting
    from . import page, plots

    if json_file is not None:
        files.write(json_file, json.dumps(result.to_dict(), indent=1) + "\n")
    if plot is not None:
        plots.save(result, plot)
    if report is not None:
        page.write(result, report)
        if not plotting.is_available():
            console.print(Text("The report has no plots, which need: pip install 'hf_speculative[plot]'"))


def _pair(
    shape: str | None, model: str | None, draft_model: str | None, dtype: str, device: str, draft_is_target: bool
) -> Pair:
    import torch

    from ..embedded import HEAD
    from ..models.loading import load_model
    from .calibrated import CalibratedPair
    from .pairs import Pair

    check_dtype(dtype)
    if shape is not None and (model or draft_model) is not None:
        raise ValueError("--shape and --model with --draft-model are two pairs: give one.")
    if shape not in (None, "embedded"):
        check_device(device)
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return CalibratedPair(str(shape), getattr(torch, dtype) if dtype else None, place, draft_is_target)
    if draft_is_target:
        raise ValueError("--draft-is-target is for a shape with random weights: give one with --shape.")
    name = "embedded" if model is None else f"{model} with {draft_model}"
    target, draft, tokenizer, draft_tokenizer = load_pair(model, draft_model, dtype, device)
    heads = {"eagle3": load_model(HEAD, dtype=target.dtype).to(target.device)} if model is None else {}
    return Pair(target, draft, name, tokenizer, draft_tokenizer, heads)
