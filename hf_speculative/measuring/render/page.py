"""Results as one self-contained HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...reports import files, pages, plotting
from ...reports.formats import plural
from . import markdown, plots, tables, texts, wording
from .tables import Found, Section


def write(found: Found, path: Path) -> None:
    """Write recommendations, tables, texts with draft tokens marked and, if matplotlib is installed, plots.

    The page of an unfinished evaluation says that it is unfinished.
    """
    evaluations = tables.by_place(found)
    first, all_sections = next(iter(evaluations.values())), tables.sections(found)
    by_place = plots.by_place(all_sections) if plotting.is_available() and len(evaluations) > 1 else None
    pages.write(
        path,
        "measuring/render/page.html",
        {
            "evaluation": first,
            "evaluations": evaluations,
            "wording": wording,
            "plural": plural,
            "sections": [_section(section) for section in all_sections],
            "by_place": by_place and pages.inline(by_place),
            "differences": [found for evaluation in evaluations.values() for found in evaluation.differences],
            "bad_rows": [row for evaluation in evaluations.values() for row in evaluation.bad_rows],
            "has_pictures": plotting.is_available(),
            "data": json.dumps(to_dict(found), indent=1, ensure_ascii=False, allow_nan=False),
        },
    )


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
        "speedups": {of_setting.setting: of_setting.speedup for of_setting in section.totals},
        "positions": tables.acceptance_by_position(section.totals),
        "prompts": tables.speedup_by_prompt(evaluation, section.totals),
        "pictures": {name: pages.inline(svg) for name, svg in pictures.items()},
        "shown": shown,
        "texts": [] if shown is None else texts.texts(evaluation, shown),
        "num_texts": 0 if shown is None else len(evaluation.rows(shown)),
    }
