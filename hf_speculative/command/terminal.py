"""How commands end: what they say where something is wrong or they are stopped, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from .interrupts import STOPPED

#: exit status where something is wrong that a user can mend
WRONG = 2


@contextmanager
def clean_exits() -> Iterator[None]:
    """What a user can mend is a message, and so is Ctrl-C; neither is a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)))
        raise typer.Exit(WRONG) from error
    except KeyboardInterrupt as interrupt:
        Console(stderr=True).print("stopped")
        raise typer.Exit(STOPPED) from interrupt


def quiet_transformers() -> None:
    """Its warnings and bars would stand between a command's own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
