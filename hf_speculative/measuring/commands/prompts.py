"""Where the prompts of the command come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ...command.prompts import built_in_prompts
from ..journal import BadRow
from ..rows import Prompt, read_prompts

#: the ways to give prompts
WAYS = "as an argument, on standard input, in a file with --prompts, or see the --demo"


def prompt_source(
    given: list[str] | None,
    path: Path | None,
    column: str,
    console: Console,
    is_chat: Callable[[], bool] = lambda: False,
) -> Callable[[], Iterator[Prompt | BadRow]]:
    """A function that iterates over the prompts, from the first one at each call.

    Args:
        is_chat: asked at each call, whether built-in ones are questions.

    Raises:
        ValueError: there are none, an empty one was given, or two sources were.
    """
    asked = [name for name, is_asked in (("arguments", given), ("--prompts", path)) if is_asked]
    if len(asked) > 1:
        raise ValueError(f"prompts from {' and from '.join(asked)} are two sources: give one.")
    texts: Iterable[Prompt | BadRow]
    if path is not None:
        if not path.is_file():
            raise ValueError(f"--prompts {path}: no such file.")
        texts = read_prompts(path, column)
    elif given:
        if "" in given:
            raise ValueError(f"prompt {given.index('') + 1} is empty: give a text to continue, {WAYS}.")
        texts = given
    elif sys.stdin is not None and sys.stdin.isatty():
        console.print("No prompt was given: two built-in ones are used.")
        return lambda: iter(built_in_prompts(is_chat())[:2])
    else:
        text = sys.stdin.read() if sys.stdin is not None else ""
        if not text:
            raise ValueError(f"no prompt, and standard input is empty: give one {WAYS}.")
        texts = [text]
    return lambda: iter(texts)


def usable(prompts: Iterator[Prompt | BadRow], console: Console) -> Iterator[Prompt]:
    """The prompts; a row without one is named on the console and skipped."""
    for prompt in prompts:
        if isinstance(prompt, BadRow):
            console.print(Text.assemble(("skipped", "yellow"), f" row {prompt.index}: {prompt.message}"))
        else:
            yield prompt


def batches(prompts: Iterator[Prompt], size: int) -> Iterator[list[Prompt]]:
    while batch := list(islice(prompts, size)):
        yield batch


def shown(prompt: Prompt, is_chat: bool) -> str:
    """A prompt as it is printed: of messages, the last one; what is said, on a line of its own."""
    if isinstance(prompt, str):
        return f"{prompt}\n" if is_chat else prompt
    return f"{prompt[-1]['content']}\n"
