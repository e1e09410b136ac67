"""The results as tables, the same in all renderings: a section for each place and temperature, a line for each setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...reports.formats import number, percent, significant
from ..recommendation import Recommendation
from ..results import Evaluation
from ..settings import Setting
from ..speedup import Speedup
from ..totals import Totals
from . import wording

#: in the place of a figure that rests on too little
DASH = "\u2013"
#: an evaluation, or several by place: what they differ in, such as the batch size
Found: TypeAlias = "Evaluation | Mapping[str, Evaluation]"


@dataclass(frozen=True)
class Line:
    """What a row is about, such as a setting, and its figures, one for each column.

    Attributes:
        is_best: it is recommended.
        tone: of its speedup, `gain` or `loss`; empty where it is neither.
    """

    label: str
    figures: list[str]
    is_best: bool = False
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Figures by row and column; of a column whose name is too long for a terminal, `wording.SHORT` has another."""

    columns: list[str]
    lines: list[Line]


@dataclass(frozen=True)
class Section:
    """The settings of one evaluation at one temperature."""

    title: str
    evaluation: Evaluation
    totals: list[Totals]
    recommendation: Recommendation | None

    @property
    def table(self) -> Table:
        """What each setting brings."""
        figures = {t.setting: _figures(self.evaluation, t) for t in self.totals}
        if len({of_setting["prompts"] for of_setting in figures.values()}) == 1:
            for of_setting in figures.values():
                del of_setting["prompts"]
        return self._table(figures)

    @property
    def scores(self) -> Table:
        """What the task score gives each setting; without columns where there is none."""
        return self._table({t.setting: {name: score(value) for name, value in t.scores.items()} for t in self.totals})

    def _table(self, figures: Mapping[Setting, Mapping[str, str]]) -> Table:
        """Columns without any figure are left out."""
        names = dict.fromkeys(name for of_setting in figures.values() for name in of_setting)
        columns = [name for name in names if any(of_setting.get(name) for of_setting in figures.values())]
        best = self.recommendation and self.recommendation.setting
        return Table(
            columns,
            [
                Line(
                    t.setting.label, [figures[t.setting].get(name, "") for name in columns], t.setting == best, tone(t)
                )
                for t in self.totals
            ],
        )

    @property
    def notes(self) -> list[str]:
        """Notes besides the figures: losses to rivals, settings that could not be measured."""
        found = [f"{t.setting.label}: {wording.NOTHING_DRAFTED}" for t in self.totals if t.drafts_nothing]
        for of_setting in self.totals:
            lost = [name for name, ratio in of_setting.over.items() if ratio.is_loss]
            found += [f"{of_setting.setting.label}: slower than {name}." for name in lost]
        if short := [t for t in self.totals if t.is_too_short and t.num_new_tokens]:
            fewest, most = self.evaluation.header["fewest_tokens"], max(t.num_new_tokens for t in short)
            found.append(
                f"{DASH}: a figure needs {fewest} new tokens or more, and {most} are all there are: decode more."
            )
        failures = {failure.setting: failure.message for failure in self.evaluation.failures}
        failed = (t.setting for t in self.totals if t.setting.name in failures)
        return [*found, *(f"{s.label}: could not be measured. {failures[s.name]}" for s in failed)]


def by_place(found: Found) -> dict[str, Evaluation]:
    """Evaluations by place; a single one has no name."""
    return {"": found} if isinstance(found, Evaluation) else dict(found)


def sections(found: Found) -> list[Section]:
    """A section for each place and temperature."""
    return [
        Section(
            ", ".join(filter(None, (place, wording.temperature(temperature)))),
            evaluation,
            [evaluation.totals(setting) for setting in evaluation.settings if setting.temperature == temperature],
            evaluation.recommendation(temperature),
        )
        for place, evaluation in by_place(found).items()
        for temperature in evaluation.temperatures
    ]


def tone(totals: Totals) -> str:
    """Whether a setting is clearly faster than plain decoding, clearly slower, or neither."""
    speedup = totals.speedup
    return "" if speedup is None else "gain" if speedup.is_gain else "loss" if speedup.is_loss else ""


def _figures(evaluation: Evaluation, totals: Totals) -> dict[str, str]:
    counts, setting, first = totals.statistics, totals.setting, totals.first_seconds
    none = DASH if totals.is_too_short and totals.num_new_tokens else ""
    passes = sum(call.num_target_passes for call in evaluation.calls[setting.name].values())
    return {
        "prompts": f"{totals.num_prompts}",
        "tokens/s": significant(totals.tokens_per_second) or none,
        "speedup": str(totals.speedup or ("" if setting.is_plain else none)),
        evaluation.spread_name: interval(totals.speedup),
        "decoding speedup": str(totals.decoding or ""),
        "acceptance rate": none or percent(counts.draft_acceptance_rate, 1) if counts else "",
        "mean acceptance length": none or number(counts.mean_acceptance_length) if counts else "",
        "time to first token": "" if first is None else f"{significant(1000 * first)} ms",
        "target passes": f"{passes:,}" if passes else "",
        "identical texts": identical(evaluation, totals),
        **{f"over {name}": str(ratio) for name, ratio in totals.over.items()},
        "peak memory": "" if totals.peak_bytes is None else f"{totals.peak_bytes / 2**20:,.0f} MiB",
    }


def acceptance_by_position(found: Sequence[Totals]) -> Table:
    """Acceptance rates by position in a round."""
    rates = {t.setting.label: t.statistics.per_position_acceptance_rate for t in found if t.statistics and t.has_rates}
    width = max(map(len, rates.values()), default=0)
    lines = [Line(label, [*map(percent, known), *[""] * (width - len(known))]) for label, known in rates.items()]
    return Table([str(position + 1) for position in range(width)], lines if width else [])


def speedup_by_prompt(evaluation: Evaluation, found: Sequence[Totals]) -> Table:
    """The distribution of speedups over prompts or batches."""
    lines = []
    for setting in (of_setting.setting for of_setting in found if of_setting.speedup is not None):
        values = list(evaluation.speedups(setting).values())
        gains = sum(speedup.median > 1 for speedup in values)
        figures = [_quantile(values, share) for share in (0, 0.25, 0.5, 0.75, 1)]
        lines.append(Line(setting.label, [*figures, f"{gains:,} of {len(values):,}"]))
    return Table(["slowest", "lower quartile", "median", "upper quartile", "fastest", "faster than plain"], lines)


def speedup_by_place(found: Sequence[Section]) -> Table:
    """The speedups of settings by place."""
    at = [{t.setting.label: str(t.speedup) for t in section.totals if t.speedup is not None} for section in found]
    labels = dict.fromkeys(label for one in at for label in one)
    return Table([section.title for section in found], [Line(x, [one.get(x, "") for one in at]) for x in labels])


def _quantile(speedups: list[Speedup], share: float) -> str:
    return f"{np.quantile([speedup.median for speedup in speedups], share):.2f}x"


def identical(evaluation: Evaluation, totals: Totals) -> str:
    """The number of texts equal to plain decoding's, of those decoded both ways."""
    if totals.num_identical is None:
        return ""
    num_known = len(evaluation.identical(totals.setting))
    return f"{totals.num_identical:,} of {num_known:,}" if num_known else ""


def interval(speedup: Speedup | None) -> str:
    """The spread of a speedup."""
    spread = None if speedup is None else speedup.spread
    return "" if spread is None else f"{spread[0]:.2f}\u2013{spread[1]:.2f}"


def score(value: float | None) -> str:
    """A task score."""
    return number(value, 3) if value is None or abs(value) < 1000 else f"{value:.4g}"
