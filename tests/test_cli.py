"""What all commands have in common, run as people run them."""

import pytest

from hf_speculative.embedded import FOLDER
from tests.support.command import run_command, write_prompts


def test_devices_and_folders_that_are_not_there(tmp_path):
    def refused(*args):
        result = run_command(*args, "--device", "abacus")
        assert result.exit_code == 2 and "Traceback" not in result.output
        return result.stderr

    data = ("eval", "--dataset", write_prompts(tmp_path / "p.jsonl", ['{"prompt": "a"}']))
    for command in (data, ("bench",), ("check",), ("generate", "x")):
        assert "--device abacus: " in refused(*command)
    for command, option in ((data, "results"), (data, "report"), (data, "json"), (("bench",), "report")):
        path = tmp_path / "nowhere" / "file"
        text = run_command(*command, f"--{option}", str(path)).stderr
        assert f"--{option} {path}: there is no folder" in text
        assert "is a folder" in run_command(*command, f"--{option}", str(tmp_path)).stderr


@pytest.mark.parametrize("command", ["generate", "check", "bench", "eval"])
def test_a_model_that_is_not_there_is_named_with_its_option(command, tmp_path):
    here, data = str(FOLDER / "target"), str(write_prompts(tmp_path / "p.txt", ["a"]))
    names = ("MODEL", "DRAFT_MODEL") if command == "check" else ("--model", "--draft-model")
    further = {"generate": ["x"], "eval": ["--dataset", data, "--results", str(tmp_path / "o.jsonl")]}.get(command, [])
    for wrong in (0, 1):
        models = [str(tmp_path / "nope") if place == wrong else here for place in (0, 1)]
        options = models if command == "check" else [word for pair in zip(names, models, strict=True) for word in pair]
        result = run_command(command, *options, *further)
        assert result.exit_code == 2 and f"{names[wrong]} {tmp_path / 'nope'} cannot be loaded. " in result.stderr


def test_a_draft_without_a_tokenizer_has_the_targets(tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    for path in (FOLDER / "draft").iterdir():
        if "token" not in path.name:
            (draft / path.name).symlink_to(path)
    data, target = write_prompts(tmp_path / "p.txt", ["a"]), FOLDER / "target"
    pair = ("--model", target, "--draft-model", draft)
    for command in (
        ("check", target, draft, "--no-measure"),
        ("bench", *pair, "--new-tokens", 8, "--repeats", 2, "--methods", "draft"),
        ("eval", *pair, "--dataset", data, "--max-new-tokens", 4, "--results", tmp_path / "out.jsonl"),
    ):
        result = run_command(*command)
        assert result.exit_code == 0, result.output
