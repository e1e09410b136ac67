"""Pictures of an evaluation. Needs matplotlib, the extra `plot`."""

from collections.abc import Mapping, Sequence

from ...reports import plotting
from ..totals import Totals
from .tables import Section

WIDTH = 4.2  # inches


def by_position(totals: Sequence[Totals]) -> str:
    """An `<svg>` element: how often the draft token at each position was kept; empty where nothing was drafted."""
    rates = {t.setting.label: t.statistics.per_position_acceptance_rate for t in totals if t.statistics and t.has_rates}
    if not any(rates.values()):
        return ""
    with plotting.style():
        return plotting.as_svg(_positions(rates))


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


def _colour(number: int) -> str:
    return plotting.COLOURS[number % len(plotting.COLOURS)]
