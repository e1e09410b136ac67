"""The report as one self-contained HTML file."""

from __future__ import annotations

import json
from pathlib import Path

from ..reports import pages, plotting
from . import plots, wording
from .results import Report


def write(report: Report, path: Path) -> None:
    """Writes tables, environment, command and, if matplotlib is installed, the plots."""
    pictures = plots.svgs(report) if plotting.is_available() else {}
    pages.write(
        path,
        "benchmark/page.html",
        {
            "report": report,
            "wording": wording,
            "pictures": {name: pages.inline(svg) for name, svg in pictures.items()},
            "data": json.dumps(report.to_dict(), indent=1),
        },
    )
