"""The command train."""

import shlex

import pytest

from hf_speculative.embedded import FOLDER
from hf_speculative.training import prompts
from hf_speculative.training.trainer import DraftTrainer
from tests.support.command import run_command, write_prompts

LINES = ['{"prompt": "def %s(x):\\n"}' % name for name in ("add", "mul", "neg", "inv", "dot")]  # noqa: UP031
QUICK = ("--head", "layers:1", "--steps", 2, "--evaluations", 1, "--max-new-tokens", 8, "--batch-size", 4)


def invoke(*args):
    return run_command("train", *args)


def test_a_run_by_command(tmp_path):
    data, out = write_prompts(tmp_path / "p.jsonl", [*LINES, "{"]), tmp_path / "out"
    result = invoke("--data", data, "--output", out, *QUICK, "--accumulate", 2)
    assert result.exit_code == 0, result.output
    assert "Row 5 is left out: line 6 is no JSON" in result.stderr
    assert "Acceptance length on held-out prompts, temperature 1:" in result.stdout
    assert f"draft_model='{out}'" in result.stdout
    lines = [line.strip() for line in result.stdout.splitlines() if line.startswith("  h")]
    assert lines[0] == f"hf-speculative eval --dataset {data} --model embedded --draft-model {out}"
    assert lines[1] == f"hf-speculative check embedded {out}"
    assert lines[2].startswith("hs.attach(hs.embedded_pair()[0],")
    results, few = tmp_path / "eval.jsonl", ("--limit", "2", "--max-new-tokens", "4", "--num-draft-tokens", "2")
    tried = run_command(*shlex.split(lines[0])[1:], *few, "--results", results)
    assert tried.exit_code == 0 and "adaptive" not in tried.output, tried.output
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "training.json"} <= names
    assert "the embedded target" in (out / "README.md").read_text()
    again = invoke("--data", data, "--output", out, *QUICK)
    assert again.exit_code == 2 and "holds a run already" in again.stderr


@pytest.mark.slow
def test_without_data_the_target_writes_its_own_prompts(tmp_path):
    result = invoke("--output", tmp_path / "out", *QUICK, "--num-prompts", 5)
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "out" / "prompts.jsonl").read_text().splitlines()) == 5
    assert f"--dataset {tmp_path / 'out' / 'prompts.jsonl'}" in result.stdout
    # Of a run whose time was over before all prompts were there: those that were answered stay the run's own.
    (tmp_path / "out" / "training.json").unlink()
    again = invoke("--output", tmp_path / "out", *QUICK, "--num-prompts", 9, "--resume")
    assert again.exit_code == 0, again.output
    assert len((tmp_path / "out" / "prompts.jsonl").read_text().splitlines()) == 5


def test_what_cannot_work_is_said_at_once(tmp_path, monkeypatch):
    data, out = write_prompts(tmp_path / "p.jsonl", LINES), tmp_path / "out"

    def refused(*args):
        result = invoke("--data", data, "--output", out, *args)
        assert result.exit_code == 2 and "Traceback" not in result.output
        return result.stderr

    monkeypatch.setattr(prompts, "read_rows", lambda *args, **kwargs: 1 / 0)  # nothing is read before
    assert "cannot be split into 3 equal passes" in refused("--batch-size", 8, "--accumulate", 3)
    assert "the target has 12 layers" in refused("--head", "layers:12")
    assert "--resume: there is no run in" in refused("--resume")
    assert f"{tmp_path}/nowhere" in refused("--head", f"draft:{tmp_path}/nowhere")
    assert "--device abacus" in refused("--device", "abacus")
    result = run_command("train", str(FOLDER / "target"), "--split", "test")
    assert result.exit_code == 2 and "--split is about --data: name a file" in result.stderr
    path = tmp_path / "file"
    path.write_text("")
    assert f"there is no folder {path}" in refused("--output", path) and not out.exists()


def test_stopping_tells_how_to_go_on(tmp_path, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(DraftTrainer, "training_step", stopped)
    data, out = write_prompts(tmp_path / "p.jsonl", LINES), tmp_path / "out"
    result = invoke("--data", data, "--output", out, *QUICK)
    assert result.exit_code == 130 and "the same command with --resume goes on from there" in result.stderr
