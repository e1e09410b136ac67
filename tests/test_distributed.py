"""Several processes: tensor parallel models, and models whose weights are sharded. The checks are in tests/two_ranks.py."""

import copy
import json
import os
import subprocess
import sys

import pytest
import tiny
import torch
import two_ranks
from transformers import BartConfig, BartForConditionalGeneration

import hf_speculative as hs
from hf_speculative import models
from hf_speculative.models import sharding as ranks


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


@pytest.fixture
def partitioned(target, monkeypatch):
    """A model as ZeRO-3 leaves it between two forwards: no weight has an element."""
    monkeypatch.setattr(ranks, "are_several", lambda: True)
    model = copy.deepcopy(target)
    for weight in model.parameters():
        weight.ds_id, weight.ds_numel = 0, weight.numel()
        weight.data = torch.empty(0)
    return model


def test_zero_3_is_recognised_and_leaves_sizes_known(target, partitioned):
    assert models.is_sharded(partitioned) and not models.is_sharded(target)
    assert models.num_parameters(partitioned) == target.num_parameters() > 0
    assert models.cached_model.last_id(partitioned) == tiny.VOCAB - 1
    assert models.with_folded_attention(partitioned) is partitioned
    assert models.with_folded_attention(target) is not target


def test_encoders_whose_weights_are_elsewhere_are_not_the_same():
    """Sharded and offloaded weights have the address 0."""
    config = BartConfig(
        vocab_size=61,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
    )
    one, other = (BartForConditionalGeneration(config).to("meta") for _ in range(2))
    assert not models.inputs._share_encoder(one, other) and models.inputs._share_encoder(one, one)
