"""A run of training as one self-contained HTML file."""

from __future__ import annotations

import json
from pathlib import Path

from ..reports import pages, plotting
from . import plots, wording
from .results import Trained


def write(result: Trained, path: Path) -> None:
    """Writes the learning curve, acceptance before and after, and how it was trained."""
    pictures = plots.as_svg(result) if plotting.is_available() else {}
    pages.write(
        path,
        "training/page.html",
        {
            "result": result,
            "wording": wording,
            "pictures": {name: pages.inline(svg) for name, svg in pictures.items()},
            "data": json.dumps(result.to_dict(), indent=1),
        },
    )
