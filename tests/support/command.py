"""The command, run in this process, and files that it reads."""

import gzip

from typer.testing import CliRunner

from hf_speculative.cli import app


def run_command(*args, columns=400, stdin=None):
    return CliRunner().invoke(app, [*map(str, args)], input=stdin, env={"COLUMNS": str(columns)})


def write_prompts(path, lines):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path
