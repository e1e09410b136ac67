"""Tensor parallel and sharded models in two processes. The checks are in tests/support/two_ranks.py."""

import json
import os
import subprocess
import sys

import pytest

import hf_speculative as hs
from tests.support import tiny, two_ranks


@pytest.mark.slow
def test_two_ranks(tmp_path):
    """All checks in one pair of processes, which takes seconds to start, and in one test, which runs in one worker."""
    processes = []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    for rank in range(2):
        command = [sys.executable, two_ranks.__file__, str(rank), str(tmp_path)]
        with (tmp_path / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        for process in processes:
            process.wait(timeout=240)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failures = []
    for rank in range(2):
        found = tmp_path / f"{rank}.json"
        results = json.loads(found.read_text()) if found.exists() else {}
        log = (tmp_path / f"{rank}.log").read_text()[-2000:]
        failures += [
            f"{name}, rank {rank}: {results.get(name, f'did not run. {log}')}"
            for name in two_ranks.CHECKS
            if results.get(name) != ""
        ]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def test_synced_gpus_false_is_as_without(target, draft):
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    out = hs.generate(target, **tiny.prompts(2), draft_model=draft, synced_gpus=False, **settings)
    assert out.tolist() == target.generate(**tiny.prompts(2), **settings).tolist()
