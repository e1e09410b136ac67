"""The results as tables, the same in all renderings: a section for each place and temperature, a line for each setting.

As Markdown too, to paste into an issue or a card.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...reports.formats import number, percent, significant
from ...reports.pages import visible
from ..results import Evaluation, Totals
from ..speedup import Recommendation
from . import wording

#: in the place of a figure that rests on too little
DASH = "\u2013"


@dataclass(frozen=True)
class Line:
    """What a row is about, such as a setting, and its figures by column.

    Attributes:
        is_best: it is recommended.
        tone: of its speedup, `gain` or `loss`; empty where it is neither.
    """

    label: str
    figures: Mapping[str, str]
    is_best: bool = False
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Figures by row and column."""

    lines: list[Line]

    @property
    def columns(self) -> list[str]:
        """Those with a figure; where a name is too long for a terminal, `wording.SHORT` has another."""
        names = dict.fromkeys(name for line in self.lines for name in line.figures)
        return [name for name in names if any(line.figures.get(name) for line in self.lines)]


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
        found = [figures(totals.to_dict(), self.evaluation.spread_name) for totals in self.totals]
        told = {"prompts"} if len({totals.num_prompts for totals in self.totals}) == 1 else set()
        told |= {"tokens/s a user"} if self.evaluation.header["batch_size"] == 1 else set()
        return self._table([{name: one[name] for name in one if name not in told} for one in found])

    @property
    def scores(self) -> Table:
        """What the task score gives each setting; without columns where there is none."""
        return self._table([{name: score(value) for name, value in totals.scores.items()} for totals in self.totals])

    def _table(self, found: Iterable[dict[str, str]]) -> Table:
        best = self.recommendation and self.recommendation.setting
        spreads = (None if t.speedup is None else t.speedup.spread for t in self.totals)
        lines = zip(self.totals, found, spreads, strict=True)
        return Table([Line(t.setting.label, of_setting, t.setting == best, tone_of(s)) for t, of_setting, s in lines])

    @property
    def positions(self) -> Table:
        """Acceptance rates by position in a round."""
        found = [(totals.setting.label, by_position(totals.to_dict())) for totals in self.totals]
        return Table([Line(label, rates) for label, rates in found if rates])

    @property
    def notes(self) -> list[str]:
        """Notes besides the figures: losses to rivals, settings that could not be measured."""
        found = [f"{t.setting.label}: {wording.NOTHING_DRAFTED}" for t in self.totals if t.drafts_nothing]
        lost = [(t.setting.label, name) for t in self.totals for name, ratio in t.over.items() if ratio.is_loss]
        found += [f"{label}: slower than {name}." for label, name in lost]
        if short := [t for t in self.totals if t.is_too_short and t.num_new_tokens]:
            fewest, most = self.evaluation.header["fewest_tokens"], max(t.num_new_tokens for t in short)
            found.append(f"{DASH}: a figure needs {fewest} new tokens or more, and there are {most}: decode more.")
        failures = {failure.setting: failure.message for failure in self.evaluation.failures}
        failed = (t.setting for t in self.totals if t.setting.name in failures)
        return [*found, *(f"{s.label}: could not be measured. {failures[s.name]}" for s in failed)]


def sections(found: Mapping[Any, Evaluation]) -> list[Section]:
    """A section for each place and temperature.

    Args:
        found: evaluations by place: what they differ in, such as the batch size; a single one by `""`.
    """
    shown = []
    for place, evaluation in found.items():
        for temperature in evaluation.temperatures:
            title = ", ".join(filter(None, (str(place), wording.temperature(temperature))))
            totals = [evaluation.totals(setting) for setting in evaluation.settings if setting.temperature == temperature]
            shown.append(Section(title, evaluation, totals, evaluation.recommendation(temperature)))
    return shown


def tone_of(spread: Sequence[float] | None) -> str:
    """The tone of a speedup with this spread."""
    if spread is None:
        return ""
    return "gain" if spread[0] > 1 else "loss" if spread[1] < 1 else ""


def figures(values: Mapping[str, Any], spread_name: str) -> dict[str, str]:
    """The figures of `Totals.to_dict()`, or of a part of it, by column."""
    counts, num, num_rows = values["statistics"] or {}, values["num_prompts"], values.get("num_rows")
    none = DASH if values.get("is_too_short") and values["num_new_tokens"] else ""
    none_drafted = none if counts else ""
    length, error = number(counts.get("mean_acceptance_length")), values.get("mean_acceptance_length_error")
    optional = ("first_seconds", "num_target_passes", "peak_bytes", "num_compared")
    first, passes, peak, compared = map(values.get, optional)
    return {
        "prompts": str(num) if num_rows in (None, num) else f"{num} of {num_rows}",
        "tokens/s": significant(values.get("tokens_per_second")) or none,
        "tokens/s a user": significant(values["user_tokens_per_second"]) or none,
        "speedup": times(values["speedup"]) or none_drafted,
        spread_name: interval(values.get("speedup_interval")),
        "decoding speedup": times((values.get("decoding") or {}).get("median")),
        "acceptance rate": percent(counts.get("draft_acceptance_rate"), 1) or none_drafted,
        "mean acceptance length": (f"{length}\u00b1{error:.2f}" if error else length) or none_drafted,
        "time to first token": f"{significant(1000 * first)} ms" if first else "",
        "target passes": f"{passes:,}" if passes else "",
        "identical texts": f"{values['num_identical']:,} of {compared:,}" if compared else "",
        **{f"over {name}": times(found["median"]) for name, found in values.get("over", {}).items()},
        "peak memory": f"{peak / 2**20:,.0f} MiB" if peak is not None else "",
    }


def by_position(values: Mapping[str, Any]) -> dict[str, str]:
    """The acceptance rates of `Totals.to_dict()` by position in a round."""
    rates = (values["statistics"] or {}).get("per_position_acceptance_rate") or []
    return {str(n): percent(rate) for n, rate in enumerate(rates, start=1)}


def times(speedup: float | None) -> str:
    """A speedup."""
    return "" if speedup is None else f"{speedup:.2f}x"


def interval(spread: Sequence[float] | None) -> str:
    """The spread of a speedup."""
    return "" if spread is None else f"{spread[0]:.2f}\u2013{spread[1]:.2f}"


def score(value: float | None) -> str:
    """A task score."""
    return number(value, 3) if value is None or abs(value) < 1000 else f"{value:.4g}"


def markdown(evaluation: Evaluation) -> str:
    """A table for each temperature, its notes and its recommendation."""
    lines = [f"**{_shown(wording.title(evaluation))}**", "", wording.about(evaluation), ""]
    for section in sections({"": evaluation}):
        lines += [f"### {_shown(section.title)}", "", *of_table(section.table), ""]
        lines += [f"* {_shown(note)}" for note in section.notes]
        if section.recommendation is not None:
            lines += [f"* {_shown(wording.sentence(section.recommendation.advice))}"]
        lines += [""]
    return "\n".join(lines)


def of_table(table: Table, about: str = "setting") -> list[str]:
    """The lines of a table.

    Args:
        about: the name of the first column.
    """
    columns = table.columns
    lines = ([line.label, *(line.figures.get(name, "") for name in columns)] for line in table.lines)
    return [row([about, *columns]), row(["---"] * (1 + len(columns))), *map(row, lines)]


def row(values: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(_shown(value).replace("|", "/") for value in values) + " |"


def _shown(text: str) -> str:
    return visible(text).replace("\n", " ")
