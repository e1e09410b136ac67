"""Pictures of an evaluation. Needs matplotlib, the extra `plot`."""

from collections.abc import Mapping, Sequence

from ...reports import plotting
from ..results import Evaluation
from ..settings import Setting
from ..speedup import Speedup
from ..totals import Totals
from .tables import Section

WIDTH = 4.2  # inches
#: labelled where they fall into the range
RATIOS = (0.1, 0.15, 0.25, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
#: more dots than these are drawn as an image
MANY = 2000


def as_svg(evaluation: Evaluation, totals: Sequence[Totals]) -> dict[str, str]:
    """`<svg>` elements by what they show, `positions` and `prompts`; only those that have figures."""
    figures = {}
    with plotting.style():
        rates = {
            t.setting.label: t.statistics.per_position_acceptance_rate for t in totals if t.statistics and t.has_rates
        }
        if any(rates.values()):
            figures["positions"] = plotting.as_svg(_positions(rates))
        speedups = [
            (t.speedup, t.setting, [*evaluation.speedups(t.setting).values()]) for t in totals if t.speedup is not None
        ]
        if speedups:
            figures["prompts"] = plotting.as_svg(_prompts(speedups))
    return figures


def by_place(sections: Sequence[Section]) -> str:
    """An `<svg>` element: the speedup of each setting at each place."""
    with plotting.style():
        return plotting.as_svg(_places(sections))


def _places(sections: Sequence[Section]):
    figure, axes = plotting.new_axes(WIDTH, 3.2)
    labels = dict.fromkeys(t.setting.label for section in sections for t in section.totals if t.speedup is not None)
    for number, label in enumerate(labels):
        found = [(x, t.speedup) for x, s in enumerate(sections) for t in s.totals if t.setting.label == label]
        told = [(x, speedup) for x, speedup in found if speedup is not None]
        xs, medians = [x + 0.04 * number for x, _ in told], [speedup.median for _, speedup in told]
        ends = [speedup.spread or (speedup.median,) * 2 for _, speedup in told]
        axes.plot(xs, medians, **plotting.line(number), label=plotting.label(label))
        axes.vlines(xs, [low for low, _ in ends], [high for _, high in ends], color=_colour(number), linewidth=1)
    axes.axhline(1, color=plotting.INK, linewidth=1, linestyle="--")
    axes.set_xticks(range(len(sections)), [plotting.label(section.title, 24) for section in sections], rotation=30)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("speedup over plain decoding", color=plotting.INK)
    plotting.legend(figure, axes)
    return figure


def _positions(rates: Mapping[str, Sequence[float]]):
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure, axes = plotting.new_axes(WIDTH, 2.6 + 0.17 * len(rates))
    for number, (name, of_name) in enumerate(rates.items()):
        axes.plot(range(1, len(of_name) + 1), of_name, **plotting.line(number), label=plotting.label(name))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("place of the draft token in its round", color=plotting.INK)
    plotting.legend(figure, axes)
    return figure


def _prompts(speedups: list[tuple[Speedup, Setting, list[Speedup]]]):
    from matplotlib.ticker import FixedLocator, FuncFormatter

    figure, axes = plotting.new_axes(WIDTH, 0.7 + 0.52 * len(speedups))
    axes.set_xscale("log")
    for number, (median, setting, values) in enumerate(speedups):
        # Spread over the strip by the golden ratio: even, and the same each time.
        heights = [number + 0.18 - 0.36 * ((0.618034 * i) % 1) for i in range(len(values))]
        is_image = len(values) > MANY
        axes.scatter(
            [value.median for value in values],
            heights,
            s=10,
            color=_colour(number),
            alpha=0.7,
            linewidths=0.5,
            rasterized=is_image,
        )
        if median.spread:
            axes.plot(median.spread, [number, number], color=plotting.INK, linewidth=1.2)
        axes.plot([median.median], [number], "D", color=plotting.INK, markersize=5)
        # In the picture's own left margin, whatever the range.
        axes.text(
            0,
            number - 0.36,
            plotting.label(setting.label),
            transform=axes.get_yaxis_transform(),
            color=plotting.INK,
            fontsize=8.5,
        )
    strips = range(len(speedups))  # not through the labels between them
    bounds = [n - 0.32 for n in strips], [n + 0.4 for n in strips]
    axes.vlines([1] * len(speedups), *bounds, color=plotting.INK, linewidth=1, linestyle="--")
    axes.set_ylim(len(speedups) - 0.6, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(FixedLocator([ratio for ratio in RATIOS if low <= ratio <= high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.minorticks_off()
    axes.set_xlabel("speedup over plain decoding", color=plotting.INK)
    return figure


def _colour(number: int) -> str:
    return plotting.COLOURS[number % len(plotting.COLOURS)]
