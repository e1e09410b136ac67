"""The Dockerfile: there is no Docker where the tests run, so what it names is held against what there is."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from hf_speculative.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
#: of each instruction, all that is said with it, lines joined
STEPS = [
    tuple(step.split(maxsplit=1))
    for step in re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if step.strip()
]


def said(instruction):
    return [rest for name, rest in STEPS if name == instruction]


def test_the_server_is_what_it_starts():
    program, command, *arguments = json.loads(said("ENTRYPOINT")[0])
    assert f'{program} = "hf_speculative.__main__:main"' in (ROOT / "pyproject.toml").read_text()
    serve = get_command(app).commands[command]
    options = {name for parameter in serve.params for name in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    (to_copy,) = re.findall(r"docker run [^#]*hf-speculative (Qwen.*)", TEXT)
    assert set(re.findall(r"--[\w-]+", to_copy)) <= options
    port = arguments[arguments.index("--port") + 1]
    assert said("EXPOSE") == [port] and f":{port}/health" in said("HEALTHCHECK")[0]


def test_the_extra_exists():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"\.whl\)\[([\w,-]+)\]", TEXT)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    version = re.search(r"ARG PYTHON=(\S+)", TEXT)[1]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_what_is_copied_is_there_and_not_ignored():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    copied = [name for rest in said("COPY") if "--from" not in rest for name in rest.split()[:-1]]
    assert copied and all((ROOT / name).exists() and name in allowed for name in copied)
    assert "**/__pycache__" in lines


def test_nobody_is_root():
    users = said("USER")
    assert users and users[-1] != "root" and f"useradd --create-home --uid 1000 {users[-1]}" in TEXT
    last_stage = STEPS[max(i for i, (name, _) in enumerate(STEPS) if name == "FROM") :]
    names = [name for name, _ in last_stage]
    assert names.index("USER") < names.index("ENTRYPOINT") and "RUN" not in names[names.index("USER") :]
