"""On a real GPU: the texts of plain decoding over every source, one read a round, random calls. `make test-gpu` runs it."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch

import hf_speculative as hs
from hf_speculative.command.prompts import BEGINNINGS
from hf_speculative.models import artifacts, pool, replays
from tests.support import random_calls
from tests.support.one_read import (
    CAPTURING,
    DEEPER,
    DRAFT,
    ONE_READ,
    PROCESSORS,
    SETTINGS,
    TARGET,
    beams,
    ids,
    prompts,
    waits_by_round,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
GPU, SYNCHRONIZES = "cuda:0", "called a synchronizing CUDA operation"
NUM_CALLS = 60


@pytest.fixture
def waits():
    """What torch says of each operation that makes the host wait."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield SimpleNamespace(waits=caught)
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ONE_READ)
def test_a_round_reads_once(name, waits, monkeypatch):
    monkeypatch.setattr(replays, "NUM_EAGER", 0)
    options, model, results = ONE_READ[name], DEEPER if name == "early exit" else TARGET, []
    target, draft = (copy.deepcopy(one).to(GPU) for one in (model, DRAFT))
    plain = prompts(GPU) | SETTINGS | {key: options[key] for key in (*PROCESSORS, "guidance_scale") if key in options}
    if not {"assistant_early_exit", "prompt_lookup_num_tokens"} & options.keys():
        options = {"draft_model": draft} | options | ({"draft_model": beams(draft)} if name == "beams, trees" else {})
    call = plain | options
    hs.generate(target, **call)  # captures, and measures costs
    found = waits_by_round(monkeypatch, waits, lambda: results.append(hs.generate(target, **call)))
    if not options.get("do_sample"):
        assert ids(results[0]) == ids(target.generate(**plain))
    for waits in found[name == "guidance" :]:
        where = [f"{one.filename}:{one.lineno}" for one in waits if SYNCHRONIZES in str(one.message)]
        assert len([place for place in where if CAPTURING not in place]) == 1, where


@pytest.fixture(scope="module")
def embedded():
    target, draft, tokenizer = hs.embedded_pair()
    head = hs.embedded_pair(head=True)[1]
    return target.to(GPU), {"draft": draft.to(GPU), "head": head.to(GPU)}, tokenizer


@pytest.mark.parametrize("optimize", [False, "auto", True])
@pytest.mark.parametrize("source", ["draft", "head", "auto", "suffix"])
def test_trained_weights(source, optimize, embedded, monkeypatch, tmp_path):
    monkeypatch.setenv(artifacts.FOLDER, str(tmp_path))  # by which "auto" is off in other tests
    target, drafts, tokenizer = embedded
    inputs = tokenizer(list(BEGINNINGS[:2]), padding=True, padding_side="left", return_tensors="pt").to(GPU)
    pool.release(target)
    draft, call = drafts.get(source, source), inputs | {"max_new_tokens": 48, "do_sample": False}
    plain = ids(target.generate(**call))
    with hs.record() as counts:
        for _ in range(2):
            found = hs.generate(target, **call, draft_model=draft, speculative_config=hs.SpeculativeConfig(optimize=optimize))
            assert ids(found) == plain
    assert bool(pool._kept[target].idle.captured) == (optimize is not False)
    assert counts.num_accepted_draft_tokens


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seeds", [range(first, first + NUM_CALLS) for first in (50_000, 60_000)], ids=str)
@pytest.mark.parametrize("check", [random_calls.check, random_calls.check_bits])
def test_random_calls(check, seeds):
    for seed in seeds:
        check(seed, GPU)
