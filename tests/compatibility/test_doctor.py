"""The table of verdicts on heads: a good one, one whose indices were shifted on purpose, a flag that is wrong, a wrong head."""

import json

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.sources import source_of
from hf_speculative.compatibility import answer, doctor, running
from hf_speculative.compatibility.doctor import Examination, changed, first_kept, is_poor, other_readings, read_as
from hf_speculative.compatibility.running import Candidate, Limits, run_trials
from hf_speculative.compatibility.trials import Trial
from hf_speculative.heads.eagle3 import Eagle3Model
from tests.support import fitted, tied

PROMPTS = [[5 + 3 * i, 9, 3 + 2 * i] for i in range(12)]
IDS = "eagle_aux_hidden_state_layer_ids"
#: what the file says that is wrong, and what sets it right
MISREAD = {
    "indices one too high": {IDS: [3, 4, 6]},
    "indices one too low": {IDS: [1, 2, 4]},
    "residual after the norm": {"norm_before_residual": True},
}
RIGHT = {IDS: fitted.LAYERS, "norm_before_residual": False}


@pytest.fixture(scope="module")
def pair():
    with torch.random.fork_rng():
        target = fitted.target()
        return target, fitted.head_for(target, PROMPTS)


@pytest.fixture(autouse=True)
def made_small(monkeypatch):
    """A head is judged by its first token, and a tiny target repeats itself, so that even a misread head is sometimes right."""
    monkeypatch.setattr(running, "NUM_DRAFT_TOKENS", 1)
    monkeypatch.setattr(doctor, "POOR", 0.9)


def candidate(head):
    return Candidate(source_of("draft_model", head), {"draft_model": "head"}, {"draft_model": head})


def tried(target, candidates):
    return run_trials(target, None, candidates, PROMPTS, Limits(1e9, 6), decodings=["greedy"])


def examined(target, head):
    (named,) = tried(target, [candidate(head)])
    return Examination(named, tuple(tried(target, other_readings(candidate(head), target))))


def test_a_good_head_is_not_examined(pair):
    target, head = pair
    (named,) = tried(target, [candidate(head)])
    assert first_kept(named) > 0.9 and not is_poor(named)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["indices one too high", "indices one too low", "residual after the norm"])
def test_a_head_that_is_misread_is_set_right(pair, name):
    target, head = pair
    found = examined(target, fitted.misread(head, **MISREAD[name]))
    assert is_poor(found.named) and first_kept(found.better) > 0.9
    assert changed(found.better) == {field: RIGHT[field] for field in MISREAD[name]}
    for field in MISREAD[name]:
        assert f"{field}={RIGHT[field]}" in found.verdict
    assert "the config is wrong" in found.verdict


@pytest.mark.slow
def test_a_head_for_another_target_fits_however_it_is_read(pair):
    target, head = pair
    torch.manual_seed(5)
    found = examined(target, Eagle3Model._from_config(head.config).eval())
    assert is_poor(found.named) and found.better is None and "no other reading fits better" in found.verdict


def test_readings_share_every_tensor_and_leave_the_head_alone(pair):
    target, head = pair
    before = head.config.to_dict()
    readings = other_readings(candidate(head), target)
    assert [{name: one.options[name] for name in one.options if name != "draft_model"} for one in readings] == [
        {"norm_before_residual": True},
        {IDS: [1, 2, 4]},
        {IDS: [1, 2, 4], "norm_before_residual": True},
        {IDS: [3, 4, 6]},
        {IDS: [3, 4, 6], "norm_before_residual": True},
    ]
    own = {tensor.data_ptr() for tensor in head.parameters()}
    for one in readings:
        assert {tensor.data_ptr() for tensor in one.source.draft_model.parameters()} == own
    assert head.config.to_dict() == before and head.layers[0].norm_before_residual is False


def test_states_that_the_target_does_not_have_are_not_tried(pair):
    target, head = pair
    last = fitted.misread(head, **{IDS: [0, 3, target.config.num_hidden_layers]})
    assert [one.options.get(IDS) for one in other_readings(candidate(last), target)] == [None]


def test_dflash_heads_are_read_in_other_ways_as_well():
    target, draft = tied.with_dflash(steps=0, num_hidden_layers=4)
    found = other_readings(candidate(draft), target)
    assert [one.options["target_layer_ids"] for one in found] == [[1, 2]]
    assert found[0].source.draft_model.config.target_layer_ids == [1, 2] and draft.config.target_layer_ids == [0, 1]
    again = read_as(draft, {"target_layer_ids": [0, 1]})
    (own, same) = tried(target, [candidate(draft), candidate(again)])
    assert own.texts == same.texts


def test_a_draft_model_is_no_head(target, draft):
    assert other_readings(candidate(draft), target) == []


def test_what_is_clearly_better():
    def trial(kept, num=40, **fields):
        rounds = ((1, 1),) * kept + ((1, 0),) * (num - kept)
        return Trial("eagle3", {"draft_model": "h", **fields}, "greedy", 80, (rounds,), (1.0, 1.0))

    def better(named, *others):
        return Examination(named, others).better

    assert better(trial(4)) is None
    assert better(trial(4), trial(5)) is None, "noise"
    assert better(trial(0, num=400), trial(20, num=400)) is None, "certain, and of no use"
    assert better(trial(1, num=4), trial(2, num=4)) is None, "too few"
    found = better(trial(4), trial(20, target_layer_ids=[1]), trial(30, target_layer_ids=[2]))
    assert changed(found) == {"target_layer_ids": [2]}


def test_check_examines_a_poor_head_and_says_so(pair, monkeypatch):
    target, head = pair
    monkeypatch.setattr(answer, "candidates", lambda target: [])
    monkeypatch.setattr(answer, "Limits", lambda seconds, **more: Limits(seconds, 6))
    wrong = fitted.misread(head, **MISREAD["indices one too low"])
    found = hs.check(target, wrong, measure=True, prompts=PROMPTS[:6], progress=False, seconds=1e9)
    assert f"with {IDS}={fitted.LAYERS}" in found.advice.verdict
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))["advice"]["examination"]
    assert values["better"] == {IDS: fitted.LAYERS} and len(values["readings"]) == 1 + 5
    good = hs.check(target, head, measure=True, prompts=PROMPTS[:2], progress=False, seconds=1e9)
    assert good.advice.examination is None and good.advice.trials[0].acceptance[0] > doctor.POOR
