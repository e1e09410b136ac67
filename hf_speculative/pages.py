"""Reports as one HTML file that needs nothing else: no script, no request leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from . import files

#: control characters by their pictures, and what no UTF-8 file can hold; line feed and tab stay
_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def visible(text: str) -> str:
    """The text with control characters as their pictures, so that a page shows them and stays well-formed."""
    return text.translate(_VISIBLE)


def write(path: Path, template: str, values: Mapping[str, Any]) -> None:
    """Render a template of the package, `evaluation/page.html`, to a file. Whatever is no `Markup` is escaped."""
    environment = Environment(
        loader=PackageLoader("hf_speculative", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not Markup
    )
    files.write(path, environment.get_template(template).render(values))


def inline(svg: str) -> Markup:
    """A picture as part of the page; of our own making, never a user's text."""
    return Markup(svg)
