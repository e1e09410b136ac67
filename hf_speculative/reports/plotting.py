"""Drawing with matplotlib, the extra `plot`: what pictures of all reports have in common."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .pages import visible

#: of axes and text: readable on white and on black, and the colour of the text around it in a page
INK = "#7f7f80"
#: of things that are compared, at least 3 to 1 on white and on black; markers differ as well, for those who see no colours
COLOURS = ("#2f7fd6", "#d2691e", "#1f9d63", "#a06cd5", "#d64550", "#128f9a", "#9a7d0a", "#c2539b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
#: no TeX in names, text as text, and the same file for the same figures
_STYLE = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "hf_speculative", "font.size": 9}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def is_available() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def style() -> Iterator[None]:
    """Figures are made and saved inside."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # A name may have letters that matplotlib's font lacks; the browser's has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_axes(width: float, height: float) -> tuple[Any, Any]:
    """A figure of a size in inches, and its axes. At 4 inches its text can be read on a phone."""
    from matplotlib.figure import Figure  # not pyplot, which keeps a state and looks for a display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def label(name: str, length: int = 42) -> str:
    """A name short enough for a picture; one with a leading underscore would be hidden from a legend."""
    name = visible(name).replace("\n", " ")
    if len(name) > length:
        name = f"{name[: length // 2 - 1]}\u2026{name[-(length // 2) :]}"
    return f" {name}" if name.startswith("_") else name


def line(number: int) -> dict[str, Any]:
    """Colour and marker of the line of that number, with the sizes that all lines have."""
    style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
    return style | {"markersize": 4.5, "linewidth": 1.4}


def legend(figure: Any, axes: Any, columns: int = 1) -> None:
    """Name what is drawn, above the axes."""
    handles, names = axes.get_legend_handles_labels()
    where = {"loc": "outside upper left", "ncols": columns, "frameon": False}
    figure.legend(handles, names, **where, labelcolor=INK, fontsize=8.5)


def as_svg(figure) -> str:
    """The text of an `<svg>` element, in the colour of the text around it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = file.getvalue().partition("<svg")[2]
    return f'<svg aria-hidden="true"{svg}'.replace(INK, "currentColor")
