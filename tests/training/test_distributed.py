"""Training in two processes."""

import json
import os
import subprocess
import sys

import pytest

from tests.support import train_distributed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["computes", "stores"])
def test_two_processes_train_as_one_does(tmp_path, how):
    """The same losses and the same acceptance, each process having answered, recorded, learned from and measured its share."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "two").mkdir()
    command = [sys.executable, train_distributed.__file__, str(tmp_path / "two"), how]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    two, other = (json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in (0, 1))
    one = train_distributed.curves(tmp_path)
    assert [loss for _, loss in two["losses"]] == pytest.approx([loss for _, loss in one["losses"]], rel=1e-4)
    assert two["lengths"] == other["lengths"] and two["lengths"] == one["lengths"]
    assert len(list((tmp_path / "two").glob("store/*/*.safetensors"))) == (8 if how == "stores" else 0)
    assert len((tmp_path / "two" / "run" / "answers.jsonl.rank1").read_text().splitlines()) == 5
