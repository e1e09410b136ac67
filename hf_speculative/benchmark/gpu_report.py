"""One table about one GPU, to paste into an issue: what the machine is, what is exact there, and what is faster."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..generation import generate
from ..reports.environment import environment
from ..reports.formats import percent, significant
from .cells import sweep
from .measure import run
from .methods import METHODS, Method
from .pairs import Pair
from .results import CellResult, Report

#: number formats, batch sizes and methods of a report
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BATCHES = (1, 8)
REPORTED = (
    "assisted",
    "speculative",
    "speculative-auto",
    "speculative-captured",
    "speculative-compiled",
    "no-draft-auto",
)
COLUMNS = ("dtype", "batch", "method", "tokens/s", "over plain", "accepted", "equal to plain", "extra memory")
#: the last one: as in `--methods`, captured and compiled at once
CAPTURED_AND_COMPILED = Method(
    "captured and compiled",
    lambda pair, cell, call: generate(
        pair.target,
        **call,
        draft_model=pair.draft,
        num_draft_tokens=cell.num_draft_tokens,
        cuda_graphs=True,
        compile=True,
    ),
    "hf_speculative, its compiled passes captured as CUDA graphs",
    is_ours=True,
)


def markdown(
    pairs: Iterable[Pair],
    num_new_tokens: int = 128,
    repeats: int = 5,
    batches: Iterable[int] = BATCHES,
    say: Callable[[str], None] = lambda what: None,
) -> str:
    """The report over `pairs`, one in each number format.

    A method that fails is a row with its error: that is what an issue is for.
    """
    lines: list[str] = []
    for pair in pairs:
        if not lines:
            lines += [*_facts(pair), "", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
        for batch in batches:
            lines += _of_batch(pair, batch, num_new_tokens, repeats, say)
    return "\n".join(lines) + "\n"


def _facts(pair: Pair) -> list[str]:
    where = environment(pair.target)
    facts = [f"{where['device']}", f"{torch.cuda.device_count()} of it"] if where["cuda"] else [where["device"]]
    if pair.device.type == "cuda":
        properties = torch.cuda.get_device_properties(pair.device)
        facts += [f"{properties.total_memory / 2**30:.0f} GiB", f"capability {properties.major}.{properties.minor}"]
    names = ("hf_speculative", "transformers", "torch", "cuda", "python")
    versions = [f"{name} {where[name]}" for name in names if where[name]]
    machine = f"{where['cores']} cores, {platform.system()} {platform.machine()}"
    return [
        f"**hf_speculative on {', '.join(facts)}**",
        "",
        f"{', '.join(versions)}; {machine}; pair: {pair.name}; greedy, medians of interleaved repeats.",
    ]


def _of_batch(pair: Pair, batch: int, num_new_tokens: int, repeats: int, say: Callable[[str], None]) -> list[str]:
    dtype = str(pair.target.dtype).removeprefix("torch.")
    [cell] = sweep(batch=[batch], num_draft_tokens=[4], context=[64], acceptance=[None], temperature=[0.0])
    chosen = [METHODS[name] for name in REPORTED] + [CAPTURED_AND_COMPILED]
    chosen = [method for method in chosen if method.max_batch is None or batch <= method.max_batch]
    equal, errors = {}, {}
    for method in chosen:
        say(f"{dtype}, batch {batch}: {method.name}, equality")
        try:
            equal[method.name] = _equal(pair, cell, method, num_new_tokens)
        except Exception as error:
            errors[method.name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    works = [method for method in chosen if method.name in equal]
    say(f"{dtype}, batch {batch}: speed")
    report = run(pair, [cell], methods=works, num_new_tokens=num_new_tokens, repeats=repeats)
    rows = []
    for name in ("plain", *(method.name for method in chosen)):
        if name in errors:
            rows.append(_row([dtype, batch, name, *[""] * 3, f"failed: {errors[name]}", ""]))
        else:
            rows.append(_row([dtype, batch, name, *_figures(report, name), equal.get(name, ""), _memory(report, name)]))
    return rows


def _equal(pair: Pair, cell, method: Method, num_new_tokens: int) -> str:
    """In how many rows a method's tokens are plain decoding's; half precision may part where two tokens are as good."""
    ids = pair.prompts(cell.batch, cell.context)
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": num_new_tokens}
    call |= {"do_sample": False, "pad_token_id": 0}
    found, expected = method.generate(pair, cell, dict(call)), pair.target.generate(**call)
    width = min(found.shape[1], expected.shape[1])
    num_equal = int((found[:, :width] == expected[:, :width]).all(1).sum()) if found.shape == expected.shape else 0
    return f"{num_equal} of {cell.batch}"


def _figures(report: Report, name: str) -> list[str]:
    cell = _cell(report)
    if cell is None or name not in cell.methods:
        return ["", "", ""]
    result = cell.methods[name]
    speedup = "1.00x" if name == "plain" else str(cell.speedup(name))
    drafted = result.statistics.num_draft_tokens
    accepted = percent(result.statistics.num_accepted_draft_tokens / drafted) if drafted else ""
    return [significant(result.tokens_per_second), speedup, accepted]


def _memory(report: Report, name: str) -> str:
    cell = _cell(report)
    peak = None if cell is None or name not in cell.methods else cell.methods[name].peak_bytes
    return "" if peak is None else f"{peak / 2**20:.0f} MiB"


def _cell(report: Report) -> CellResult | None:
    return report.cells[0] if report.cells else None


def _row(values: Iterable) -> str:
    return "| " + " | ".join(str(value).replace("|", "/") for value in values) + " |"
