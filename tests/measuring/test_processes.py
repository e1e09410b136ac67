"""An evaluation in several processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_speculative as hs
from hf_speculative.call.statistics import RowStatistics
from hf_speculative.measuring.plan import Plan, Processes
from tests.support.evaluations import TEXTS, counts


@pytest.mark.release
def test_two_processes_give_the_totals_of_one(model, small, tokenizer, evaluate, tmp_path):
    for part, folder in ((model, "target"), (small, "small")):
        part.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    # With --cpu accelerate would launch one process.
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    command = [
        *("-m", "hf_speculative", "eval", "--dataset", "data.jsonl", "--model", "target", "--draft-model", "small"),
        *("--num-draft-tokens", "3", "--temperature", "0,1", "--max-new-tokens", "12", "--report", "out.html"),
    ]
    command = [sys.executable, *launch, "--mixed_precision=no", "--dynamo_backend=no", *command]
    env = os.environ | {"PYTHONPATH": str(Path(hs.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"a\s+figure\s+needs", done.stdout)) == 2, "one report of two temperatures, not two"
    found = hs.Evaluation.load(tmp_path / "eval.jsonl")
    expected = evaluate(draft_model={"small": small}, temperatures=(0.0, 1.0))
    assert found.environment["processes"] == 2 and found.is_complete
    assert counts(found) == counts(expected)
    for setting in expected.settings:
        ours, theirs = found.totals(setting).statistics, expected.totals(setting).statistics
        assert setting.is_plain or RowStatistics.from_dict(ours.to_dict()) == RowStatistics.from_dict(theirs.to_dict())
    assert (tmp_path / "out.html").exists() and not list(tmp_path.glob("*.rank*"))


def test_all_processes_hear_that_the_file_is_taken(tmp_path):
    """Those that do not ask for the lock would else wait for the first one for ever."""
    heard = Processes(rank=1, count=2)
    object.__setattr__(heard, "gather", lambda entries: [*entries, "another evaluation is writing it"])
    with pytest.raises(ValueError, match="another evaluation"), Plan({}, [], tmp_path / "out.jsonl", heard).locked():
        pytest.fail("it went on")
    assert not list(tmp_path.iterdir()), "only the first process locks"
