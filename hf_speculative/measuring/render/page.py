"""Results as one self-contained HTML file: of an evaluation, or of what other commands measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...reports import files, pages, plotting
from ...reports.formats import plural
from ..journal import BadRow, Difference
from . import markdown, plots, tables, texts, wording
from .tables import Found, Section, Table


@dataclass(frozen=True)
class Picture:
    """An `<svg>` element with what stands above it."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """What a page shows, from its top to its end.

    Attributes:
        kind: what it is a report of, for the browser's title.
        about: paragraphs below the title.
        notes: what a reader should know first, such as that it is unfinished.
        sections: of evaluations; `tables` and `pictures` come before them.
        meanings: names of figures and what they mean.
        facts: under the last `heading`.
        data: all figures, ready for JSON.
    """

    title: str
    kind: str
    about: Sequence[str]
    heading: str
    facts: Mapping[str, str]
    meanings: Mapping[str, str]
    data: Mapping[str, Any]
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    sections: Sequence[Mapping[str, Any]] = ()
    differences: Sequence[Difference] = ()
    bad_rows: Sequence[BadRow] = ()

    @property
    def json(self) -> str:
        return json.dumps(self.data, indent=1, ensure_ascii=False, allow_nan=False)

    def write(self, path: Path) -> None:
        """Write the page."""
        values = {"report": self, "wording": wording, "plural": plural, "has_pictures": plotting.is_available()}
        pages.write(path, "measuring/render/page.html", values)


def write(found: Found, path: Path) -> None:
    """Write recommendations, tables, texts with draft tokens marked and, if matplotlib is installed, plots.

    The page of an unfinished evaluation says that it is unfinished.
    """
    evaluations = tables.by_place(found)
    first, all_sections = next(iter(evaluations.values())), tables.sections(found)
    caption, pictures = "Over plain decoding; bars are the spread, and noise is left out.", []
    if plotting.is_available() and len(evaluations) > 1:
        pictures = [Picture("Speedup by place", caption, pages.inline(plots.by_place(all_sections)))]
    unfinished = {place: one for place, one in evaluations.items() if not one.is_complete}
    Report(
        wording.title(first),
        "speculative decoding evaluated",
        [f"Speculative decoding against plain decoding. {wording.about(first)}"],
        "What was evaluated, and where",
        wording.facts(first),
        wording.MEANINGS,
        to_dict(found),
        [f"{f'{place}: ' if place else ''}{wording.progress(one)}" for place, one in unfinished.items()],
        pictures,
        sections=[_section(section) for section in all_sections],
        differences=[found for evaluation in evaluations.values() for found in evaluation.differences],
        bad_rows=[row for evaluation in evaluations.values() for row in evaluation.bad_rows],
    ).write(path)


def write_report(found: Found, path: Path) -> None:
    """Write a report as the file's ending asks for: `.md` is Markdown, all else a page."""
    if path.suffix.lower() == ".md":
        files.write(path, markdown.text(found))
    else:
        write(found, path)


def to_dict(found: Found) -> dict[str, Any]:
    """Ready for JSON: an evaluation's own figures, or those of each place by its name."""
    evaluations = tables.by_place(found)
    if [*evaluations] == [""]:
        return evaluations[""].to_dict()
    return {place: evaluation.to_dict() for place, evaluation in evaluations.items()}


def _section(section: Section) -> dict[str, Any]:
    evaluation, recommendation = section.evaluation, section.recommendation
    shown = None if recommendation is None else recommendation.best
    pictures = plots.as_svg(evaluation, section.totals) if plotting.is_available() else {}
    return {
        "title": section.title,
        "unit": wording.unit(evaluation),
        "recommendation": recommendation,
        "totals": section.table,
        "notes": section.notes,
        "scores": section.scores,
        "positions": tables.acceptance_by_position(section.totals),
        "prompts": tables.speedup_by_prompt(evaluation, section.totals),
        "pictures": {name: pages.inline(svg) for name, svg in pictures.items()},
        "shown": shown,
        "texts": [] if shown is None else texts.texts(evaluation, shown),
        "num_texts": 0 if shown is None else len(evaluation.rows(shown)),
    }
