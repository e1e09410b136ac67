"""Results as one self-contained HTML file."""

import json
from pathlib import Path
from typing import Any

from ...reports import files, pages
from ...reports.formats import plural
from . import markdown, tables, texts, wording
from .tables import Found, Section


def write(found: Found, path: Path) -> None:
    """Write recommendations, tables with bars, and texts with draft tokens marked.

    The page of an unfinished evaluation says that it is unfinished.
    """
    evaluations = tables.by_place(found)
    first, all_sections = next(iter(evaluations.values())), tables.sections(found)
    unfinished = {place: one for place, one in evaluations.items() if not one.is_complete}
    values = {
        "title": wording.title(first),
        "about": f"Speculative decoding against plain decoding. {wording.about(first)}",
        "notes": [f"{f'{place}: ' if place else ''}{wording.progress(one)}" for place, one in unfinished.items()],
        "by_place": tables.speedup_by_place(all_sections) if len(evaluations) > 1 else None,
        "sections": [_section(section) for section in all_sections],
        "differences": [found for evaluation in evaluations.values() for found in evaluation.differences],
        "bad_rows": [row for evaluation in evaluations.values() for row in evaluation.bad_rows],
        "facts": wording.facts(first),
        "json": json.dumps(to_dict(found), indent=1, ensure_ascii=False, allow_nan=False),
        "wording": wording,
        "plural": plural,
    }
    pages.write(path, "measuring/render/page.html", values)


def write_report(found: Found, path: Path) -> None:
    """Write a report in the format of the file's ending: `.md` is Markdown, any other an HTML page."""
    if path.suffix.lower() == ".md":
        files.write(path, markdown.text(found))
    else:
        write(found, path)


def to_dict(found: Found) -> dict[str, Any]:
    """The figures of an evaluation, or of several by place, ready for JSON."""
    evaluations = tables.by_place(found)
    if [*evaluations] == [""]:
        return evaluations[""].to_dict()
    return {place: evaluation.to_dict() for place, evaluation in evaluations.items()}


def _section(section: Section) -> dict[str, Any]:
    evaluation, recommendation = section.evaluation, section.recommendation
    shown = None if recommendation is None else recommendation.best
    return {
        "title": section.title,
        "unit": wording.unit(evaluation),
        "recommendation": recommendation,
        "totals": section.table,
        "notes": section.notes,
        "scores": section.scores,
        "positions": tables.acceptance_by_position(section.totals),
        "prompts": tables.speedup_by_prompt(evaluation, section.totals),
        "shown": shown,
        "texts": [] if shown is None else texts.texts(evaluation, shown),
        "num_texts": 0 if shown is None else len(evaluation.rows(shown)),
    }
