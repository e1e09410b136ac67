"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from . import plots, wording
from .results import Report


def write(report: Report, path: Path) -> None:
    """Tables, environment, command and, where matplotlib is installed, the plots inline."""
    loader = PackageLoader("hf_speculative.benchmark", ".")
    template = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template(
        "page.html"
    )
    pictures = plots.as_svg(report) if plots.is_available() else {}
    text = template.render(
        report=report,
        wording=wording,
        pictures={name: Markup(svg) for name, svg in pictures.items()},  # our own, not a user's text
        data=json.dumps(report.to_dict(), indent=1),
    )
    path.write_text(text, encoding="utf-8")
