"""An evaluation as one self-contained HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...reports import pages, plotting
from ..results import Evaluation
from . import plots, texts, wording


def write(evaluation: Evaluation, path: Path) -> None:
    """Writes recommendations, tables, texts with draft tokens marked and, if matplotlib is installed, plots.

    The page of an unfinished evaluation says that it is unfinished.
    """
    pages.write(
        path,
        "measuring/render/page.html",
        {
            "evaluation": evaluation,
            "wording": wording,
            "sections": [_section(evaluation, temperature) for temperature in evaluation.temperatures],
            "has_pictures": plotting.is_available(),
            "data": json.dumps(evaluation.to_dict(), indent=1, ensure_ascii=False, allow_nan=False),
        },
    )


def _section(evaluation: Evaluation, temperature: float) -> dict[str, Any]:
    totals, recommendation = wording.at(evaluation, temperature), evaluation.recommendation(temperature)
    shown = None if recommendation is None else recommendation.best
    pictures = plots.as_svg(evaluation, totals) if plotting.is_available() else {}
    return {
        "temperature": temperature,
        "recommendation": recommendation,
        "totals": wording.totals(evaluation, totals),
        "notes": wording.notes(totals),
        "scores": wording.scores(totals),
        "speedups": {of_setting.setting: of_setting.speedup for of_setting in totals},
        "positions": wording.acceptance_by_position(totals),
        "prompts": wording.speedup_by_prompt(evaluation, totals),
        "pictures": {name: pages.inline(svg) for name, svg in pictures.items()},
        "shown": shown,
        "texts": [] if shown is None else texts.texts(evaluation, shown),
        "num_texts": 0 if shown is None else len(evaluation.rows(shown)),
    }
