"""What reports print on a terminal."""

from rich.text import Text

from .pages import visible


def as_text(text: str, style: str = "") -> Text:
    """Never markup, for a name may hold what rich, or the terminal, would obey."""
    return Text(visible(text), style)
