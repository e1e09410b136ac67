"""Errors of commands: in the words of the command, at once, naming what the user wrote."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_speculative import names
from hf_speculative.command.terminal import in_options, options_of
from hf_speculative.embedded import FOLDER
from hf_speculative.measuring.commands.evaluate import eval_command
from hf_speculative.training.cli import train_command
from tests.support.command import run_command


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        (train_command, "`learning_rate=-1.0`: give more than 0.", "`--learning-rate -1.0`: give more than 0."),
        (train_command, "`steps` and `minutes` both", "`--steps` and `--minutes` both"),
        (train_command, "go on with `resume=True`", "go on with `--resume`"),
        (train_command, "`output='a b'` holds", "`--output a b` holds"),
        (train_command, "`dataset` has 1 prompt", "`--data` has 1 prompt"),
        (train_command, "`num_evaluations=0`", "`--evaluations 0`"),
        (train_command, "`attention_mask` is no option", "`attention_mask` is no option"),
        (eval_command, "`prompt_lookup_num_tokens=0`", "`--prompt-lookup 0`"),
        (eval_command, "`temperatures=-1`", "`--temperature -1`"),
    ],
)
def test_keywords_are_told_as_options(command, message, shown):
    assert in_options(message, options_of(command)) == shown


WRONG = {
    "a file of prompts": ["eval", "--dataset", "missing.jsonl"],
    "prompts to learn from": ["train", "--data", "missing.jsonl"],
    "a model's folder": ["check", "./missing"],
    "a draft's name": ["serve", "--draft-model", "no name"],
    "a file": ["serve", __file__],
    "a folder": ["playground", "--draft-model", "no/such/folder"],
    "a number format": ["playground", "--dtype", "int3"],
}
#: runs commands one after the other, each of which has to exit with status 2
REFUSED = """
import sys
from hf_speculative.__main__ import main
for args in {commands}:
    sys.argv = ["hf-speculative", *args]
    print("\\n#", args[-1], file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as done:
        assert done.code == 2, (args, done.code)
"""


def test_what_is_not_there_is_said_before_torch_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(names.__file__).parents[1]}", "COLUMNS": "200"}
    command = [sys.executable, "-c", REFUSED.format(commands=[*WRONG.values()])]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    said = [part.split("\n", 1) for part in result.stderr.split("\n# ")[1:]]
    assert [name for name, _ in said] == [args[-1] for args in WRONG.values()]
    assert all(name in message for name, message in said), result.stderr


def test_names():
    assert names.place_of("embedded") == str(FOLDER / "target")
    assert names.place_of("embedded/head") == str(FOLDER / "head")
    assert names.place_of("org/name") == "org/name"
    for name in ("org/name", "gpt2", "Qwen/Qwen2.5-0.5B", str(FOLDER)):
        names.check_name(name)
    for name in ("./x", "/x", "x/", "a/b/c", "two words", "x\n"):
        with pytest.raises(ValueError, match="there is no folder"):
            names.check_name(name)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where nothing can be made")
@pytest.mark.parametrize(
    "args",
    [["train", "--steps", "1", "--output", "/proc/x", "--data"], ["eval", "--results", "/proc/x.jsonl", "--dataset"]],
    ids=lambda args: args[0],
)
def test_a_place_where_nothing_can_be_written(args, tmp_path):
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "x"}\n' * 2)
    result = run_command(*args, str(data), columns=200)
    assert result.exit_code == 2 and re.search("can(not)? be", result.stderr) and "name another" in result.stderr
    assert "/proc/x" in result.stderr and "Errno" not in result.stderr
