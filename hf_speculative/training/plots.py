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
        style = {"color": plotting.COLOURS[number], "marker": plotting.MARKERS[number]}
        axes.plot(
            steps, lengths, **style, markersize=4.5, linewidth=1.4, label=plotting.label(wording.way_name(result, way))
        )
    if result.best_step is not None:
        axes.axvline(result.best_step, color=plotting.INK, linewidth=0.8, linestyle="--", label="kept")
    axes.set_ylim(bottom=1)
    axes.set_xlabel("steps", color=plotting.INK)
    axes.set_ylabel("acceptance length", color=plotting.INK)
    _legend(figure, axes)
    return figure


def _positions(result: Trained):
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure, axes = plotting.new_axes(WIDTH, 3.0)
    for number, way in enumerate(wording.ways(result)):
        for point, line in ((result.before, ":"), (result.after, "-")):
            if point is not None:
                rates = point.by_position[way]
                name = f"{wording.way_name(result, way)}, {'before' if point is result.before else 'after'}"
                style = {"color": plotting.COLOURS[number], "marker": plotting.MARKERS[number], "linestyle": line}
                axes.plot(
                    range(1, len(rates) + 1), rates, **style, markersize=4, linewidth=1.4, label=plotting.label(name)
                )
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("place of the draft token in its round", color=plotting.INK)
    axes.set_ylabel("kept up to there", color=plotting.INK)
    _legend(figure, axes)
    return figure


def _loss(result: Trained):
    figure, axes = plotting.new_axes(WIDTH, 2.6)
    axes.plot(*zip(*result.losses, strict=True), color=plotting.COLOURS[2], linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("steps", color=plotting.INK)
    axes.set_ylabel(f"loss ({result.settings['loss']})", color=plotting.INK)
    return figure


def _legend(figure, axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper left", ncols=2, frameon=False, labelcolor=plotting.INK, fontsize=8.5
    )
