"""Reports as one HTML file that needs nothing else: no script, no request leaves it."""

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader
from rich.text import Text

#: what is not seen, or turns text around (Unicode's Cf, Zl and Zp): soft hyphen, marks and overrides of direction, spaces
#: without width, fillers, tags; not the joiners and the number signs that scripts and emoji are written with
_INVISIBLE = (
    *(0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF),
    *(*range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC)),
    *(*range(0x1D173, 0x1D17B), *range(0xE0000, 0xE0080)),
)
#: control characters by their pictures, invisible ones by the escape that JSON has for them, and what no UTF-8 file can hold;
#: line feed and tab stay
_VISIBLE = {
    **{code: json.dumps(chr(code))[1:-1] for code in _INVISIBLE},
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def visible(text: str) -> str:
    """The text with control characters as their pictures and invisible ones as escapes: nothing is hidden or turned around, and
    a page stays well-formed."""
    return text.translate(_VISIBLE)


def render(template: str, **values: Any) -> str:
    """A template of the package, `measuring/render/page.html`, filled. Whatever is no `Markup` is escaped."""
    return templates().get_template(template).render(values)


@cache
def templates() -> Environment:
    """The package's templates, as parts of HTML."""
    return Environment(
        loader=PackageLoader("hf_speculative", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not Markup
    )


def as_text(text: str, style: str = "") -> Text:
    """Never markup, for a name may hold what rich, or the terminal, would obey."""
    return Text(visible(text), style)
