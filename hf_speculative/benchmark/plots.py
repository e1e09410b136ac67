"""Pictures of a report. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..reports import files
from ..reports.plotting import INK, as_svg, label, new_axes, require, style
from . import wording
from .cells import AXES
from .results import STAGES, CellResult, Report

#: at least 3 to 1 on white and on black; none is red, which is for a loss
COLOURS = {
    "plain": "#808080",
    "plain-compiled": "#a06cd5",
    "assisted": "#d2691e",
    "assisted-default": "#9a7d0a",
    "speculative": "#2b8cbe",
    "speculative-auto": "#22a06b",
    "speculative-compiled": "#c2539b",
    "speculative-packed": "#7a7a00",
    "speculative-captured": "#8c564b",
}
STAGE_COLOURS = dict(zip(STAGES, ("#22a06b", "#2b8cbe", "#d2691e", "#a06cd5"), strict=True))


def figures(report: Report) -> dict[str, Any]:
    """Matplotlib figures by name: speedup against each setting that was swept, and the split of a round's time."""
    require()
    found = {f"speedup_{axis}": _speedup(report, axis) for axis in AXES if len(_along(report, axis)) > 1}
    if any(method.is_ours for cell in report.cells for method in cell.methods.values()):
        found["round"] = _rounds(report)
    return found


def save(report: Report, folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style():
        for name, figure in figures(report).items():
            for kind in ("png", "svg"):
                paths.append(folder / f"{name}.{kind}")
                picture = io.BytesIO()
                figure.savefig(picture, format=kind, dpi=220, transparent=kind == "svg")
                files.write(paths[-1], picture.getvalue())
    return paths


def svgs(report: Report) -> dict[str, str]:
    """Each figure as the text of an `<svg>` element."""
    with style():
        return {name: as_svg(figure) for name, figure in figures(report).items()}


def _along(report: Report, axis: str) -> list[CellResult]:
    """The cells that differ from the first in nothing but `axis`, in its order."""
    if not report.cells:
        return []
    others = [name for name in AXES if name != axis]
    base = report.cells[0].cell
    same = [c for c in report.cells if all(getattr(c.cell, name) == getattr(base, name) for name in others)]
    return sorted(same, key=lambda result: getattr(result.cell, axis))


def _speedup(report: Report, axis: str):
    figure, axes = new_axes(4.4, 3.6)
    cells = _along(report, axis)
    names = list(dict.fromkeys(name for cell in cells for name in cell.methods if name != "plain"))
    for name in names:
        found = ((getattr(c.cell, axis), c.speedup(name)) for c in cells)
        points = [(x, speedup) for x, speedup in found if speedup is not None and not speedup.is_noise]
        x, medians = [x for x, _ in points], [speedup.median for _, speedup in points]
        colour = COLOURS.get(name)
        (line,) = axes.plot(x, medians, "o-", color=colour, label=label(name, 24), markersize=4)
        spreads = [(x, *speedup.spread) for x, speedup in points if speedup.spread]
        if spreads:  # not of single repeats
            axes.fill_between(*zip(*spreads, strict=True), color=line.get_color(), alpha=0.2)
        theory = [(getattr(c.cell, axis), value) for c in cells if (value := c.theory(name)) is not None]
        if theory:
            axes.plot(
                *zip(*theory, strict=True),
                "--",
                color=line.get_color(),
                linewidth=1,
                label=f"{label(name, 16)}, theory",
            )
    axes.axhline(1, color=COLOURS["plain"], linewidth=1)
    if axis in ("batch", "context"):
        axes.set_xscale("log", base=2)
    values = [getattr(cell.cell, axis) for cell in cells]
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(AXES[axis], color=INK)
    axes.set_ylabel("speedup over plain generate", color=INK)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, labelcolor=INK)
    return figure


def _rounds(report: Report):
    bars = [
        (wording.place(cell, report.cells), name, method.stage_seconds())
        for cell in report.cells
        for name, method in cell.methods.items()
        if method.is_ours
    ]
    figure, axes = new_axes(4.4, 1.2 + 0.36 * len(bars))
    starts = [0.0] * len(bars)
    for stage in STAGES:
        lengths = [max(0.0, 1000 * stages[stage]) for _, _, stages in bars]
        axes.barh(range(len(bars)), lengths, left=starts, color=STAGE_COLOURS[stage], label=stage, height=0.7)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    labels = [f"{label(name, 22)}\n{place}" for place, name, _ in bars]
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a round", color=INK)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, labelcolor=INK)
    return figure
