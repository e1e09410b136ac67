"""The table of `bench --gpu-report`, on a CPU: what it says does not depend on the device."""

import pytest
import torch
from typer.testing import CliRunner

from hf_speculative import embedded_pair
from hf_speculative.benchmark import Pair, gpu_report
from hf_speculative.cli import app
from tests.support import tiny


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(gpu_report, "REPORTED", ("speculative", "speculative-captured"))


def test_a_table_to_paste(target, draft, few):
    text = gpu_report.markdown([Pair(target, draft, "tiny")], num_new_tokens=8, repeats=1, batches=[1, 2])
    title, _, facts, _, head, line, *rows = text.splitlines()
    assert title.startswith("**hf_speculative on ") and "torch 2." in facts and "pair: tiny" in facts
    assert head == "| " + " | ".join(gpu_report.COLUMNS) + " |" and line.count("---") == len(gpu_report.COLUMNS)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[1], row[2]) for row in cells[:4]] == [
        ("1", name) for name in ("plain", "speculative", "speculative-captured", "captured and compiled")
    ]
    assert all(len(row) == len(gpu_report.COLUMNS) for row in cells) and len(cells) == 8
    of_ours = [row for row in cells if row[2] == "speculative"]
    # What is counted stands in each row; what is timed is empty where the clock was disturbed, as it may be in runs this short.
    assert [row[6] for row in of_ours] == ["1 of 1", "2 of 2"] and all(row[5].endswith(" %") for row in of_ours)


def test_what_fails_is_a_row_that_says_why(target, draft, few):
    text = gpu_report.markdown([Pair(target, draft, "tiny")], num_new_tokens=8, repeats=1, batches=[1])
    [row] = [row for row in text.splitlines() if "| speculative-captured |" in row]
    assert "failed: ValueError: `cuda_graphs=True` needs a CUDA device" in row


def test_a_text_that_differs_is_counted(target, draft, few):
    other = tiny.llama(seed=7)
    pair = Pair(target, draft, "tiny")
    wrong = gpu_report.Method("wrong", lambda pair, cell, call: other.generate(**call), "another model's text")
    [cell] = gpu_report.sweep(batch=[2], num_draft_tokens=[4], context=[8], acceptance=[None], temperature=[0.0])
    assert gpu_report._equal(pair, cell, wrong, 6) == "0 of 2"


def test_the_command_says_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["bench", "--gpu-report"])
    assert result.exit_code != 0 and "torch finds none" in result.output + str(result.exception)
    result = CliRunner().invoke(app, ["bench", "--gpu-report", "--dtype", "float16"])
    assert result.exit_code != 0 and "all number formats" in result.output + str(result.exception)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    """Equality, graphs, speed and memory at once: eager, captured, compiled, and both. `pytest -s` shows the table."""
    target, draft, tokenizer = embedded_pair()
    pair = Pair(target.cuda(), draft.cuda(), "embedded", tokenizer)
    text = gpu_report.markdown([pair], num_new_tokens=64, repeats=3)
    print(text)
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("| float32")
    ]
    for _, batch, method, speed, speedup, _, equal, memory in rows:
        assert speed and speedup and memory, (method, equal)
        assert method == "plain" or equal == f"{batch} of {batch}"
