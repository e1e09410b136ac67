"""The command bench."""

import json
import re

import pytest
from typer.testing import CliRunner

from hf_speculative import benchmark
from hf_speculative.benchmark import methods
from hf_speculative.cli import app

SMALL = [
    "--shape",
    "tiny",
    "--new-tokens",
    "8",
    "--repeats",
    "2",
    "--context",
    "8",
    "--acceptance",
    "1",
    "--dtype",
    "float32",
]


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "160"})


def test_the_command(tmp_path, steady):
    result = bench(
        *SMALL, "--temperature", "1", "--batch", "1,2", "--json", tmp_path / "a.json", "--report", tmp_path / "a.html"
    )
    assert result.exit_code == 0, result.output
    for word in (
        "tokens/s",
        "speedup",
        "efficiency",
        "verify",
        "bandwidth",
        "Bare passes",
        "temperature 1",
        "copy bandwidth",
    ):
        assert word in result.stdout
    data = json.loads((tmp_path / "a.json").read_text())
    assert set(data) == {"pair", "environment", "settings", "copy_bandwidth", "is_interrupted", "failures", "cells"}
    assert {"device", "threads", "torch", "transformers", "dtype", "command"} <= set(data["environment"])
    assert [cell["cell"]["temperature"] for cell in data["cells"]] == [1.0, 1.0]
    own = data["cells"][0]["methods"]["speculative"]
    assert set(own["stage_seconds"]) == {"draft", "verify", "accept", "overhead"} and len(own["samples"]) == 2
    assert own["speedup"]["median"] == 1 and own["efficiency"] == pytest.approx(1 / own["theory"])
    assert own["speedup"]["allowed"] > 2, "8 tokens less 2 in one round instead of 6 steps, or two"
    assert own["extra_peak_bytes"] > 0
    assert data["cells"][0]["passes"]["verify_seconds"] > 0 and data["cells"][0]["calibration"]["acceptance"] > 0.99
    text = (tmp_path / "a.html").read_text()
    assert text.count("<h2>batch ") == 2 and "prefers-color-scheme" in text and 'name="viewport"' in text
    assert not re.search(r"""(src|href)=["']http""", text)


def test_interrupted_results_are_kept(tmp_path, monkeypatch):
    calls = []

    def interrupted(pair, cell, call):
        calls.append(1)
        if len(calls) == 9:  # the second cell's first repeat: warm-up and 2 repeats of 2 calls each in the first
            raise KeyboardInterrupt
        return pair.target.generate(**call)

    monkeypatch.setitem(methods.METHODS, "own", benchmark.Method("own", interrupted, "", is_speculative=False))
    result = bench(*SMALL, "--batch", "1,2", "--methods", "own", "--json", tmp_path / "a.json")
    assert result.exit_code == 130 and "1 of 2 cells" in result.stderr, result.output
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["is_interrupted"] and [len(c["methods"]["own"]["samples"]) for c in data["cells"]] == [2]


def test_help_teaches():
    text = re.sub(r"\x1b\[[0-9;]*m", "", bench("--help").output)
    for word in (
        "hf-speculative bench --shape tinyllama-1.1b --acceptance 0.8",
        "--draft-tokens",
        "--grid",
        "LOSS",
        "Ctrl-C",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "huge"], "choose one of tiny, gpt2-xl"),
        (["--batch", "one"], "--batch one: give a number"),
        (["--model", "some/model"], "--model and --draft-model go together"),
        (["--dtype", "int4"], "--dtype int4: choose one of"),
        (["--draft-is-target"], "--draft-is-target is for a shape"),
    ],
)
def test_errors_are_messages(arguments, message):
    result = bench(*arguments)
    assert result.exit_code == 2 and message in re.sub(r"\s+", " ", result.stderr) and "Traceback" not in result.output


def test_plots_say_how_to_install_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = bench(*SMALL, "--plot", tmp_path)
    assert result.exit_code == 2 and "pip install 'hf_speculative[plot]'" in result.stderr
