"""The command `hf-speculative bench`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..command.arguments import DTYPES, check_device, check_dtype, check_outputs, naming
from ..command.interrupts import STOPPED, ends_at_once
from ..command.terminal import quiet_transformers
from ..reports import files
from .cells import sweep
from .methods import DEFAULT_METHODS, METHODS
from .shapes import SHAPES

# Nothing that imports torch: `--help` answers at once.
if TYPE_CHECKING:
    import torch

    from .pairs import Pair
    from .results import Report

T = TypeVar("T", int, float)


def bench(
    shape: Annotated[
        str | None,
        typer.Option(
            help=f"A pair with random weights, nothing to download: {', '.join(SHAPES)}. Or: embedded, the default."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder, instead of a shape.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft: a Hub name or folder.")] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            help="What a shape is calibrated to, from 0 (hostile) to 1 (the draft's distribution is the target's)."
        ),
    ] = "0.8",
    draft_is_target: Annotated[
        bool,
        typer.Option("--draft-is-target", help="A shape's draft is the target itself: all accepted, nothing to gain."),
    ] = False,
    draft_tokens: Annotated[str, typer.Option(help="Tokens drafted a round.")] = "4",
    batch: Annotated[str, typer.Option(help="Rows decoded together.")] = "1",
    context: Annotated[str, typer.Option(help="Tokens of each prompt.")] = "64",
    temperature: Annotated[str, typer.Option(help="0 is greedy.")] = "0",
    grid: Annotated[
        bool,
        typer.Option(
            "--grid", help="All combinations of the lists. Without: one list at a time, the others at their first."
        ),
    ] = False,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated for each row.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats, for medians; one gives no verdict.")] = 3,
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(METHODS)}.")] = ",".join(DEFAULT_METHODS),
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Also plain with a static cache, and ours, both compiled; compiling takes minutes."
        ),
    ] = False,
    dtype: Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}. Default: bfloat16 where the hardware has it.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; by default cuda where there is one.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write plots into this folder. Needs the extra `plot`.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page with tables and plots.")] = None,
) -> None:
    """Measure how fast a pair decodes, against plain `generate`, transformers' assisted generation, and theory.

    Nothing to download:  hf-speculative bench

    A 1.1B model whose draft is right 80 % of the time:  hf-speculative bench --shape tinyllama-1.1b --acceptance 0.8

    Batches and draft lengths, one list at a time:  hf-speculative bench --shape gpt2-xl --batch 1,2,4 --draft-tokens 4,2,6

    A draft that is hardly ever right, to see what it costs:  hf-speculative bench --shape tinyllama-1.1b --acceptance 0

    Your own pair:  hf-speculative bench --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --batch 1,4

    A page to show, and the figures:  hf-speculative bench --batch 1,2,4,8 --report bench.html --json bench.json

    Lists are written with commas: --acceptance, --draft-tokens, --batch, --context, --temperature. The first value of each is
    the base, and each further one is measured with all others at their base; --grid measures all combinations. All methods
    run in turn on the same prompts, with a warm-up that does not count. A row that is slower than plain decoding, or than
    assisted generation, beyond the spread of the repeats says LOSS; one that is faster than its target passes allow, noise.
    Ctrl-C keeps what was measured.
    """
    with ends_at_once():
        from ..reports import plotting
        from . import screen
        from .measure import run

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    quiet_transformers()
    if plot is not None:
        plotting.require()
        files.check_folder("--plot", plot)
    check_outputs(json=json_file, report=report)
    is_shape = model is None and draft_model is None and shape not in (None, "embedded")
    cells = sweep(
        batch=_numbers("--batch", batch, int),
        num_draft_tokens=_numbers("--draft-tokens", draft_tokens, int),
        context=_numbers("--context", context, int),
        acceptance=_numbers("--acceptance", acceptance, float) if is_shape else [None],
        temperature=_numbers("--temperature", temperature, float),
        grid=grid,
    )
    with ends_at_once(), err.status("building the pair"):
        pair = _pair(shape, model, draft_model, dtype, device, draft_is_target)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        result = run(
            pair,
            cells,
            methods=[*methods.split(","), *(["plain-compiled", "speculative-compiled"] if compiled else [])],
            num_new_tokens=new_tokens,
            repeats=repeats,
            watch=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            on_cell=lambda cell, so_far: screen.print_cell(out, cell, so_far),
        )
    if result.is_interrupted:
        err.print(f"stopped; measured until then: {len(result.cells)} of {len(cells)} cells.")
    screen.print_legend(out, result)
    _write(result, json_file, plot, report, err)
    if result.is_interrupted:
        raise typer.Exit(STOPPED)
    if not result.cells:
        raise typer.Exit(1)


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
            console.print(Text("The report has no plots: pip install 'hf_speculative[plot]' brings them."))


def _numbers(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} {text}: give a number, or several with commas between them.") from error


def _pair(
    shape: str | None, model: str | None, draft_model: str | None, dtype: str, device: str, draft_is_target: bool
) -> Pair:
    import torch

    from ..embedded import embedded_pair
    from .calibrated import CalibratedPair
    from .pairs import Pair

    check_dtype(dtype)
    if (model is None) != (draft_model is None):
        raise ValueError("--model and --draft-model go together: give both, or a --shape.")
    if model is not None and shape is not None:
        raise ValueError("--shape and --model are two pairs: give one.")
    check_device(device)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    asked = getattr(torch, dtype) if dtype else None
    if model is not None and draft_model is not None:
        return _loaded_pair(model, draft_model, asked, place)
    if shape in (None, "embedded"):
        if draft_is_target:
            raise ValueError("--draft-is-target is for a shape with random weights: give one with --shape.")
        target, draft, tokenizer = embedded_pair(dtype=asked or torch.float32)
        return Pair(target.to(place), draft.to(place), "embedded", tokenizer)
    return CalibratedPair(str(shape), asked, place, draft_is_target)


def _loaded_pair(model: str, draft_model: str, dtype: torch.dtype | None, place: torch.device) -> Pair:
    from transformers import AutoTokenizer

    from ..call.draft_models import tokenizer_of_draft
    from ..models.loading import load_model
    from .pairs import Pair

    with naming("--model", model):
        target = load_model(model, dtype=dtype or "auto").to(place)
        tokenizer = AutoTokenizer.from_pretrained(model)
    with naming("--draft-model", draft_model):
        draft = load_model(draft_model, dtype=dtype or "auto").to(place)
    draft_tokenizer = tokenizer_of_draft(draft_model, tokenizer)
    return Pair(target, draft, f"{model} with {draft_model}", tokenizer, draft_tokenizer)
