"""Results as one self-contained HTML file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...reports import files, pages
from ...reports.formats import plural
from ..results import Evaluation
from . import result_table, wording


def write(found: Mapping[Any, Evaluation], path: Path) -> None:
    """Write recommendations and tables with bars.

    The page of an unfinished evaluation says that it is unfinished.

    Args:
        found: evaluations by place, as `result_table.sections` takes them.
    """
    first = next(iter(found.values()))
    html = pages.render(
        "measuring/render/page.html",
        title=wording.title(first),
        about=f"Speculative decoding against plain decoding. {wording.about(first)}",
        notes=[wording.at_place(place, wording.progress(one)) for place, one in found.items() if not one.is_complete],
        sections=result_table.sections(found),
        differences=[one for evaluation in found.values() for one in evaluation.differences],
        bad_rows=[row for evaluation in found.values() for row in evaluation.bad_rows],
        facts=wording.facts(first),
        json=json.dumps([one.to_dict() for one in found.values()], indent=1, ensure_ascii=False, allow_nan=False),
        wording=wording,
        plural=plural,
    )
    files.write(path, html)


def write_report(found: Mapping[Any, Evaluation], markdown: str, path: Path) -> None:
    """Write a report in the format of the file's ending: `.md` is Markdown, any other a page of what was found, if anything."""
    if path.suffix.lower() == ".md" or not found:
        files.write(path, markdown)
    else:
        write(found, path)
