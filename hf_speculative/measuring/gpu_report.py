"""One table about one GPU, to paste into an issue: what the machine is, what is exact there, and what is faster."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .bench import Pair, Place, bench
from .render import markdown
from .render.tables import Section, sections
from .results import Evaluation

#: number formats, batch sizes and methods of a report
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BATCHES = (1, 8)
REPORTED = ("assisted", "draft", "optimized", "auto")
#: columns of the results' table that are shown
COLUMNS = ("tokens/s", "speedup", "decoding speedup", "acceptance rate", "identical texts", "peak memory")


def text(
    pairs: Iterable[Pair],
    max_new_tokens: int = 128,
    repeats: int = 5,
    batches: Sequence[int] = BATCHES,
    methods: Sequence[str] = REPORTED,
    context: int = 64,
    say: Callable[[str], None] = lambda what: None,
) -> str:
    """The report over `pairs`, one in each number format. A setting that fails is named with its error below the table."""
    lines: list[str] = []
    notes: list[str] = []
    for pair in pairs:
        dtype = str(pair.target.dtype).removeprefix("torch.")
        for size in batches:
            say(f"{dtype}, batch {size}")
            options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "repeats": repeats, "progress": False}
            ((_, evaluation),) = bench(pair, [Place(size, context)], methods, (4, None), **options)
            if not lines:
                head = ("dtype", "batch", "setting", *COLUMNS)
                lines += [*_facts(evaluation), "", markdown.row(head), markdown.row(["---"] * len(head))]
            for section in sections(evaluation):
                lines += _rows(section, dtype, size)
                notes += [f"* {dtype}, batch {size}: {note}" for note in section.notes]
    return "\n".join([*lines, "", *notes]) + "\n"


def _rows(section: Section, dtype: str, size: int) -> list[str]:
    table = section.table
    figures = (dict(zip(table.columns, line.figures, strict=True)) for line in table.lines)
    return [
        markdown.row([dtype, str(size), line.label, *(of_line.get(name, "") for name in COLUMNS)])
        for line, of_line in zip(table.lines, figures, strict=True)
    ]


def _facts(evaluation: Evaluation) -> list[str]:
    where = evaluation.environment
    facts = [where["device"]]
    if where["cuda"]:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts += [f"{torch.cuda.device_count()} of it", f"{properties.total_memory / 2**30:.0f} GiB"]
        facts += [f"capability {properties.major}.{properties.minor}"]
    names = ("hf_speculative", "transformers", "torch", "cuda", "python")
    versions = [f"{name} {where[name]}" for name in names if where[name]]
    machine = f"{where['cores']} cores, {platform.system()} {platform.machine()}"
    return [
        f"**hf_speculative on {', '.join(facts)}**",
        "",
        f"{', '.join(versions)}; {machine}; target: {evaluation.header['target']}; greedy, medians of interleaved repeats.",
    ]
