"""docs/commands.md, written from the commands by typer itself: `python -m tests.support.commands_page`."""

import re
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from hf_speculative.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
INTRO = """# Commands

`hf-speculative` has a command for each question. This page is what `--help` says; `make docs` writes it from the commands.
`hf-speculative --install-completion` teaches your shell their names and options.

| command | |
|---|---|
"""
#: options that every command has, and what the page has said by then
SAID = r"^\* `--(?:help|install-completion|show-completion)`.*\n"


def render() -> str:
    command: Any = get_command(app)  # a group of click's, or of the copy that newer typers bring
    context = typer.Context(command, info_name="hf-speculative")
    text = get_docs_for_click(obj=command, ctx=context, name="hf-speculative")
    text = text[text.index("\n## ") :]
    text = re.sub(SAID, "", text, flags=re.MULTILINE)
    # a line of help that is a command, or ends in one: it is set as code
    text = re.sub(r"^(\S.*:)? *(?<![$`] )(hf-speculative .*)$", _as_code, text, flags=re.MULTILINE)
    return INTRO + "".join(map(_row, command.commands.values())) + text.rstrip() + "\n"


def _as_code(found: re.Match) -> str:
    before = f"{found[1]}\n\n" if found[1] else ""
    return f"{before}```console\n$ {found[2]}\n```"


def _row(command: Any) -> str:
    first = (command.help or "").split("\n\n")[0].replace("|", r"\|")
    return f"| [`{command.name}`](#hf-speculative-{command.name}) | {first} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
