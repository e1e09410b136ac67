"""`hf-speculative check`."""

import json
import re

import pytest

import hf_speculative as hs
from hf_speculative.compatibility import running
from tests.architectures.check import build
from tests.support.command import run_command, write_prompts


@pytest.fixture(autouse=True)
def short_texts(monkeypatch):
    monkeypatch.setattr(running, "SHORTEST_CALL", 6)


def shown(*args, command="check"):
    result = run_command(command, *args, columns=200)
    assert "Traceback" not in result.output
    return result


def test_whether_a_pair_can_work():
    result = shown("--json", "--no-measure")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["is_compatible"] and answer["vocabulary"]["strategy"] == "same"
    assert answer["advice"] is None
    text = shown("--no-measure").stdout
    assert "ragged: each row" in text and "Vocabularies: both" in text and "compatible" in text
    assert "Passes of the target: " in text
    assert shown("--seconds", "0").exit_code == 2


@pytest.mark.slow
def test_whether_it_is_worth_it(tmp_path):
    prompts = write_prompts(tmp_path / "p.jsonl", ['{"prompt": "import os"}', "{}"])
    result = shown("--seconds", "0.2", "--prompts", prompts, "--batch", "1,2")
    assert result.exit_code == 0 and "Parameters: target 8.1 million, draft 2.2 million." in result.stdout
    for name in ("draft, 4 tokens", "ngram, up", "auto, adaptive", "early_exit at layer 3", "batch 2, Sampling at T=1"):
        assert name in result.stdout
    assert "nan" not in result.stdout and "skipped row 1" in result.stderr
    said = " ".join(result.stdout.split())
    assert {"Greedy at batch 1:", "Sampled at batch 2:"} <= set(re.findall(r"\w+ at batch \d:", said))
    assert f"{tmp_path / 'no'}: there is no such file" in shown("--prompts", tmp_path / "no").stderr


def test_a_target_alone_gets_advice_too(tmp_path):
    target, _, tokenizer = hs.embedded_pair()
    for part in (target, tokenizer):
        part.save_pretrained(tmp_path)
    result = shown(tmp_path, "--seconds", "0.1", "--json", "--batch", "2")
    advice = json.loads(result.stdout)["advice"]
    (of_size,) = advice["evaluations"]
    assert of_size["batch_size"] == 2 and "at batch" not in advice["verdict"]
    assert "--batch x: give a number" in shown(tmp_path, "--batch", "x").stderr
    names = " ".join(one["setting"] for one in of_size["totals"])
    assert result.exit_code == 0 and "ngram" in names and "auto" in names
    assert set(advice["parameters"]) == {"target"}


def test_status_1_where_a_pair_does_not_work(tmp_path):
    target, _, tokenizer = hs.embedded_pair()
    for name, model in (("target", target), ("draft", build("causal", "rwkv"))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    result = shown(tmp_path / "target", tmp_path / "draft", "--no-measure")
    assert result.exit_code == 1 and "not compatible" in result.stdout


@pytest.fixture
def two_files(tmp_path):
    """Texts of the embedded target: equal, without one, and differing by a token that no rounding explains."""

    def write(name, texts):
        rows = [{"prompt": "def main():\n", "text": text} for text in texts]
        return write_prompts(tmp_path / name, [json.dumps(row) for row in rows])

    first, second = ["    return 0", "", "    return 0"], ["    return 0", "a", "    return zebra"]
    return write("a.jsonl", first), write("b.jsonl", second)


def test_why_the_texts_of_two_files_differ(two_files):
    result = shown("embedded", *two_files, "--dtype", "bfloat16", command="audit")
    assert result.exit_code == 1 and "row 2, " in result.stdout and "not rounding" in result.stdout
    assert "1 of 2 texts differ, 0 by ties within rounding, 1 not" in result.stdout
    assert result.stderr.count("skipped row 1") == 1
    same = shown("embedded", two_files[0], two_files[0], command="audit")
    assert same.exit_code == 0 and "0 of 2 texts differ" in same.stdout


def test_files_that_cannot_be_compared(two_files, tmp_path):
    short = write_prompts(tmp_path / "c.jsonl", ['{"text": "a"}'])
    assert "SECOND 1" in shown("embedded", two_files[0], short, command="audit").stderr
    assert "there is no such file" in shown("embedded", two_files[0], tmp_path / "no", command="audit").stderr
    assert "answer` is no column" in shown("embedded", *two_files, "--field", "answer", command="audit").stderr
