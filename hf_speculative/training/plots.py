"""Pictures of a run of training. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

from ..reports import plotting
from . import wording
from .results import Trained

WIDTH = 4.2  # inches


def as_svg(result: Trained) -> dict[str, str]:
    """`<svg>` elements by what they show; only those that have figures."""
    found = {}
    with plotting.style():
        if result.curve:
            found["curve"] = plotting.as_svg(_curve(result))
            found["positions"] = plotting.as_svg(_positions(result))
        if result.losses:
            found["loss"] = plotting.as_svg(_loss(result))
    return found


def _curve(result: Trained):
    figure, axes = plotting.new_axes(WIDTH, 3.0)
    steps = [point.step for point in result.curve]
    for number, way in enumerate(wording.ways(result)):
        lengths = [point.acceptance_length[way] for point in result.curve]
        axes.plot(steps, lengths, **plotting.line(number), label=plotting.label(wording.way_name(result, way)))
    if result.best_step is not None:
        axes.axvline(result.best_step, color=plotting.INK, linewidth=0.8, linestyle="--", label="kept")
    axes.set_ylim(bottom=1)
    axes.set_xlabel("steps", color=plotting.INK)
    axes.set_ylabel("acceptance length", color=plotting.INK)
    plotting.legend(figure, axes, columns=2)
    return figure


def _positions(result: Trained):
    figure, axes = plotting.new_axes(WIDTH, 3.0)
    for number, way in enumerate(wording.ways(result)):
        for point, dashes in ((result.before, ":"), (result.after, "-")):
            if point is not None:
                rates = point.by_position[way]
                name = f"{wording.way_name(result, way)}, {'before' if point is result.before else 'after'}"
                style = plotting.line(number) | {"linestyle": dashes}
                axes.plot(range(1, len(rates) + 1), rates, **style, label=plotting.label(name))
    plotting.shares_by_position(axes, "kept up to there")
    plotting.legend(figure, axes, columns=2)
    return figure


def _loss(result: Trained):
    figure, axes = plotting.new_axes(WIDTH, 2.6)
    axes.plot(*zip(*result.losses, strict=True), color=plotting.COLOURS[2], linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("steps", color=plotting.INK)
    axes.set_ylabel(f"loss ({result.settings['loss']})", color=plotting.INK)
    return figure
