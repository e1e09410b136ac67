"""The command eval."""

from typer.testing import CliRunner

from hf_speculative.cli import app
from tests.support.evaluations import kill_after
from tests.support.files import write_prompts


def test_a_stopped_evaluation_tells_what_it_has_and_that_it_is_a_part(tmp_path, monkeypatch):
    kill_after(monkeypatch, 3)
    data, results = write_prompts(tmp_path / "p.txt", ["a", "b", "c"]), tmp_path / "eval.jsonl"
    args = ("--dataset", data, "--results", results, "--max-new-tokens", "4", "--num-draft-tokens", "2")
    result = CliRunner().invoke(app, ["eval", *map(str, args)], env={"COLUMNS": "400"})
    assert result.exit_code == 130, "a script goes on after 0"
    assert "the same command continues from there" in result.stderr and "Unfinished: of 3 prompts" in result.stdout
