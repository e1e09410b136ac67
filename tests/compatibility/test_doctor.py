"""The table of verdicts on heads: a good one, one whose indices were shifted on purpose, a flag that is wrong, a wrong head."""

import json

import pytest
import torch

import hf_speculative as hs
from hf_speculative.compatibility import answer, doctor, running
from hf_speculative.compatibility.doctor import Examination, Reading, other_readings, read_as
from hf_speculative.compatibility.running import short_evaluation
from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.measuring.settings import NamedDraft, Setting
from tests.support import heads, tied

PROMPTS = [[5 + 3 * i, 9, 3 + 2 * i] for i in range(12)]
IDS = "eagle_aux_hidden_state_layer_ids"
#: what the file says that is wrong, and what sets it right
MISREAD = {"indices one too high": {IDS: [3, 4, 6]}, "indices one too low": {IDS: [1, 2, 4]}}
MISREAD["residual after the norm"] = {"norm_before_residual": True}
RIGHT = {IDS: heads.FITTED_LAYERS, "norm_before_residual": False}


@pytest.fixture(scope="module")
def pair():
    with torch.random.fork_rng():
        target = heads.loud_target()
        return target, heads.fitted(target, PROMPTS)


@pytest.fixture(autouse=True)
def made_small(monkeypatch):
    """A head is judged by its first token, and a tiny target repeats itself, so that even a misread head is sometimes right."""
    monkeypatch.setattr(running, "NUM_DRAFT_TOKENS", 1)
    monkeypatch.setattr(running, "MOST_BATCHES", 12)
    for name in ("SHORTEST_CALL", "LONGEST_CALL"):
        monkeypatch.setattr(running, name, 7)
    monkeypatch.setattr(doctor, "POOR", 0.9)


def read(target, heads):
    """Readings of heads by name, all on the same texts."""
    drafts = {name: NamedDraft(head) for name, (_, head) in heads.items()}
    settings = [Setting(draft_model=name, num_draft_tokens=1) for name in heads]
    found = short_evaluation(target, None, drafts, settings, PROMPTS, 1, 1e9)
    totals = {setting.draft: found.totals(setting) for setting in found.settings}
    return [Reading.of(fields, totals[name]) for name, (fields, _) in heads.items()]


def examined(target, head):
    others = {f"reading {i}": one for i, one in enumerate(other_readings(head, target))}
    named, *others = read(target, {"head": ({}, head)} | others)
    return Examination(named, tuple(others))


def test_a_good_head_is_not_examined(pair):
    target, head = pair
    (named,) = read(target, {"head": ({}, head)})
    assert named.first_kept > 0.9 and not named.is_poor


@pytest.mark.slow
@pytest.mark.parametrize("name", ["indices one too high", "indices one too low", "residual after the norm"])
def test_a_head_that_is_misread_is_set_right(pair, name):
    target, head = pair
    found = examined(target, read_as(head, MISREAD[name]))
    assert found.named.is_poor and found.better.first_kept > 0.9
    assert found.better.fields == {field: RIGHT[field] for field in MISREAD[name]}
    for field in MISREAD[name]:
        assert f"{field}={RIGHT[field]}" in found.verdict
    assert "the config is wrong" in found.verdict


@pytest.mark.slow
def test_a_head_for_another_target_fits_however_it_is_read(pair):
    target, head = pair
    torch.manual_seed(5)
    found = examined(target, Eagle3Model._from_config(head.config).eval())
    assert found.named.is_poor and found.better is None and "no other reading fits better" in found.verdict


def test_readings_share_every_tensor_and_leave_the_head_alone(pair):
    target, head = pair
    before = head.config.to_dict()
    readings = other_readings(head, target)
    flag, low, high = {"norm_before_residual": True}, {IDS: [1, 2, 4]}, {IDS: [3, 4, 6]}
    assert [fields for fields, _ in readings] == [flag, low, low | flag, high, high | flag]
    own = {tensor.data_ptr() for tensor in head.parameters()}
    for _, one in readings:
        assert {tensor.data_ptr() for tensor in one.parameters()} == own
    assert head.config.to_dict() == before and head.layers[0].norm_before_residual is False


def test_states_that_the_target_does_not_have_are_not_tried(pair):
    target, head = pair
    last = read_as(head, {IDS: [0, 3, target.config.num_hidden_layers]})
    assert [fields.get(IDS) for fields, _ in other_readings(last, target)] == [None]


def test_dflash_heads_are_read_in_other_ways_as_well():
    target, draft = tied.with_dflash(steps=0, num_hidden_layers=4)
    ((fields, other),) = other_readings(draft, target)
    assert fields == {"target_layer_ids": [1, 2]}
    assert other.config.target_layer_ids == [1, 2] and draft.config.target_layer_ids == [0, 1]
    own, same = read(target, {"own": ({}, draft), "same": ({}, read_as(draft, {"target_layer_ids": [0, 1]}))})
    assert own == same and own.num_drafts > 0


def test_what_is_clearly_better():
    def reading(kept, num=40, **fields):
        return Reading(fields, num, kept / max(1, num))

    def better(named, *others):
        return Examination(named, others).better

    assert better(reading(4)) is None
    assert better(reading(4), reading(5)) is None, "noise"
    assert better(reading(0, num=400), reading(20, num=400)) is None, "certain, and of no use"
    assert better(reading(1, num=4), reading(2, num=4)) is None, "too few"
    found = better(reading(4), reading(20, target_layer_ids=[1]), reading(30, target_layer_ids=[2]))
    assert found.fields == {"target_layer_ids": [2]}
    assert not reading(0, num=0).is_poor, "nothing drafted tells nothing"


@pytest.mark.slow
def test_check_examines_a_poor_head_and_says_so(pair, monkeypatch):
    target, head = pair
    monkeypatch.setattr(answer, "candidates", lambda target: [])
    wrong = read_as(head, MISREAD["indices one too low"])
    found = hs.check(target, wrong, measure=True, prompts=PROMPTS[:6], progress=False, seconds=1e9, batch_sizes=[1])
    assert f"with {IDS}={heads.FITTED_LAYERS}" in found.advice.verdict
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))["advice"]["examination"]
    assert values["better"] == {IDS: heads.FITTED_LAYERS} and len(values["readings"]) == 1 + 5
    good = hs.check(target, head, measure=True, prompts=PROMPTS[:2], progress=False, seconds=1e9, batch_sizes=[1])
    assert good.advice.examination is None and "first tokens" not in good.advice.verdict.split("The draft")[0]
