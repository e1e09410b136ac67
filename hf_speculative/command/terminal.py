"""How commands end: message and exit status after an error or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from .interrupts import STOPPED

#: exit status after an error that the user can correct
WRONG = 2


@contextmanager
def clean_exits() -> Iterator[None]:
    """Errors that the user can correct, and Ctrl-C, print a message and no traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)))
        raise typer.Exit(WRONG) from error
    except KeyboardInterrupt as interrupt:
        Console(stderr=True).print("stopped")
        raise typer.Exit(STOPPED) from interrupt


def quiet_transformers() -> None:
    """Hides its warnings and bars, which would mix with a command's own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
