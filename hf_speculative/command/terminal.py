"""How commands end: message and exit status after an error or Ctrl-C."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from .interrupts import STOPPED, ends_at_once

#: exit status after an error that the user can correct
WRONG = 2
#: a keyword of Python in a message, with or without a value
KEYWORD = re.compile(r"`(?P<name>[a-z_]+)(?:=(?P<value>[^`]*))?`")
#: keywords whose options have other names
ALIASES = {"data": ("dataset",), "target": ("model",), "prompt_lookup": ("prompt_lookup_num_tokens",)}
QUOTES = "\"'"


def clean_exits(command: Callable) -> Callable:
    """A command whose errors that the user can correct, and Ctrl-C, print a message and no traceback."""

    @functools.wraps(command)
    def run(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError, OSError, ImportError) as error:
            message = in_options(str(error), options_of(command))
            Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), message))
            raise typer.Exit(WRONG) from error
        except KeyboardInterrupt as interrupt:
            Console(stderr=True).print("stopped")
            raise typer.Exit(STOPPED) from interrupt

    return run


def options_of(command: Callable) -> dict[str, str]:
    """How a command calls the keywords of Python that its options stand for."""
    annotations = {name: parameter.annotation for name, parameter in inspect.signature(command).parameters.items()}
    # typer's context has none
    options = {name: kind.__metadata__[1] for name, kind in annotations.items() if hasattr(kind, "__metadata__")}
    for name, option in list(options.items()):
        for alias in (f"num_{name}", f"{name}s", name.removesuffix("_file"), *ALIASES.get(name, ())):
            options.setdefault(alias, option)
    return options


def in_options(message: str, options: dict[str, str]) -> str:
    """A message about keywords of Python in the words of a command: `seed=-1` becomes `--seed -1`."""

    def translated(match: re.Match) -> str:
        option, value = options.get(match["name"]), match["value"]
        if option is None:
            return match[0]
        return f"`{option}`" if value in (None, "", "True", "None") else f"`{option} {value.strip(QUOTES)}`"

    return KEYWORD.sub(translated, message)


@contextmanager
def loading(console: Console, what: str = "loading the models") -> Iterator[None]:
    """Show that something is being loaded, and end at once on Ctrl-C; from here on, transformers' own bars are hidden."""
    with ends_at_once(), console.status(what):
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


def warn_of_host(console: Console, host: str) -> None:
    """Say where others may connect."""
    if host not in ("localhost", "127.0.0.1", "::1"):
        console.print(f"[bold]{host} can be reached from other machines[/], without a password.")
