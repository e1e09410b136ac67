"""Tensor parallel and sharded models: two processes, whose checks are in tests/support/two_ranks.py, and what ranks tell."""

import json
import os
import subprocess
import sys

import pytest
import torch

import hf_speculative as hs
from hf_speculative.distributed.tensor_parallel import AgreedSchedule
from hf_speculative.schedules import ConfidenceStop, Constant
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


class OfAnotherMind:
    """In place of ranks, the first of which has found the opposite."""

    def __init__(self, all_draft):
        self.all_draft = all_draft

    def broadcast(self, values):
        return ~values


def test_where_drafts_end_is_for_the_first_rank_to_say():
    chances, scores, tokens = torch.tensor([0.9, 0.1]), torch.zeros(2, 3), torch.tensor([0, 1])
    for all_draft in (True, False):
        schedule = AgreedSchedule(OfAnotherMind(all_draft), ConfidenceStop(Constant(3), 0.5))
        assert schedule.should_stop(scores, tokens).tolist() == [not all_draft] * 2
        assert schedule.should_stop_before(chances).tolist() == ([True, False] if all_draft else [False, True])
        assert schedule.should_stop(scores, tokens) is None, "estimates count instead"
