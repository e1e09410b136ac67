"""What the command train prints in the end."""

from rich.console import Console
from rich.text import Text

from ..measuring.render.screen import print_table
from . import wording
from .results import Trained


def result(console: Console, found: Trained) -> None:
    """What a run brought."""
    print_table(console, wording.acceptance(found))
    console.print(Text(wording.summary(found)))
    console.print(Text(f"The card, with the learning curve, is in {found.folder}. Go on with it:"))
    for line in wording.next_lines(found):
        console.print(Text(f"  {line}"), soft_wrap=True)
