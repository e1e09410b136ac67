"""The command `hf-speculative`. Importing it imports nothing heavy: help, version and completion answer at once."""

from typing import Annotated

import typer

from .command.settings import help_of
from .command.terminal import clean_exits
from .compatibility.cli import audit, check
from .compilation.cli import compile_command
from .hub import cli as hub
from .measuring.commands.bench import bench
from .measuring.commands.evaluate import eval_command
from .measuring.commands.generate import generate
from .playground.cli import playground
from .serving.cli import serve
from .training.cli import train_command
from .version import __version__

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"hf-speculative {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)


@app.callback()
def root(version: Annotated[bool, VERSION] = False) -> None:
    """Speculative decoding for transformers: exact, batched, measured.

    Try it, nothing to download:  hf-speculative generate "def main():"
    """


DECODING = (generate, playground, serve, check, audit, compile_command, bench, eval_command, train_command)
for _command in (*DECODING, hub.card, hub.export, hub.export_generate):
    _name = _command.__name__.removesuffix("_command").replace("_", "-")
    app.command(_name, help=help_of(_command))(clean_exits(_command))
