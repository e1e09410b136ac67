"""The Dockerfile: there is no Docker where the tests run, so what it names is held against what there is."""

import json
import re
from pathlib import Path

from typer.main import get_command

from hf_speculative.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_server_is_what_it_starts():
    _, command, *arguments = json.loads(re.search("^ENTRYPOINT (.*)", TEXT, re.MULTILINE)[1])
    options = {name for parameter in get_command(app).commands[command].params for name in parameter.opts}
    (to_copy,) = re.findall(r"docker run [^#]*hf-speculative (Qwen.*)", TEXT)
    named = {argument for argument in (*arguments, *to_copy.split()) if argument.startswith("--")}
    assert named <= options
    port = arguments[arguments.index("--port") + 1]
    assert f"\nEXPOSE {port}\n" in TEXT and f":{port}/health" in TEXT


def test_what_is_copied_and_installed_is_there():
    allowed = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()]
    copied = [name for line in re.findall("^COPY (?!--)(.*)", TEXT, re.MULTILINE) for name in line.split()[:-1]]
    assert copied and "*" in allowed and all((ROOT / name).exists() and name in allowed for name in copied)
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", TEXT)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


def test_nobody_is_root():
    users = re.findall(r"^USER (\w+)$", TEXT, re.MULTILINE)
    assert users and users[-1] != "root" and f"useradd --create-home --uid 1000 {users[-1]}" in TEXT
    assert TEXT.index(f"\nUSER {users[-1]}") < TEXT.index("\nENTRYPOINT") and "\nRUN" not in TEXT.split("\nUSER ")[-1]
