"""Other ways to decode are settings like ours: timed, compared token for token, and never recommended."""

from unittest.mock import Mock

import pytest
import torch

from hf_speculative.measuring import Decoded, Rival, Setting
from hf_speculative.measuring.calls import assisted, timed_generate
from hf_speculative.measuring.settings import NamedDraft
from tests.support.evaluations import TEXTS

OURS = Setting(draft_model="draft", num_draft_tokens=3)


def copying(model, num_wrong=0):
    """A rival that decodes plainly, in no time, but for some wrong last tokens."""

    def decode(call):
        inputs = {name: call[name] for name in ("input_ids", "attention_mask", "max_new_tokens", "pad_token_id")}
        new = model.generate(**inputs, do_sample=False)[:, call["input_ids"].shape[1] :].tolist()
        for row in new[:num_wrong]:
            row[-1] += 1
        return Decoded(new, 1e-6)

    return Rival("copying", decode)


def test_assisted_generation_is_exact_and_its_passes_are_counted(evaluate, model, small):
    before = small.generation_config.to_dict()
    rival = Setting(rival="assisted", num_draft_tokens=3)
    evaluation = evaluate(num_draft_tokens=(4,), settings=[OURS, rival], rivals=[assisted(model, NamedDraft(small))])
    ours, theirs = evaluation.totals(OURS), evaluation.totals(rival)
    assert theirs.num_identical == ours.num_identical == 5 and not evaluation.differences
    calls = evaluation.calls[rival.name].values()
    assert all(0 < call.num_target_passes < 12 for call in calls), "passes of the draft are not among them"
    assert theirs.statistics is None
    assert list(ours.over) == ["assisted, 3 tokens"] and not theirs.over
    assert small.generation_config.to_dict() == before
    (found,) = evaluation.recommendations
    assert found.best == OURS


def test_a_rival_of_one_s_own_is_compared_token_for_token(evaluate, model):
    evaluation = evaluate(rivals=[copying(model, num_wrong=1)], batch_size=2)
    _, ours, rival = evaluation.settings
    assert rival.label == "copying" and evaluation.totals(rival).num_identical == 2
    assert not evaluation.differences, "another's difference is no bug of ours"
    assert evaluation.totals(ours).over["copying"].is_loss is False, "five calls tell no interval"
    assert all(call.decoding is None for call in evaluation.calls[rival.name].values())


def test_who_is_refused(evaluate, model, small):
    rivals = [assisted(model, NamedDraft(small))]
    for options, message in (
        ({"settings": [OURS, Setting(rival="other")], "rivals": rivals}, "names none of `rivals`: assisted"),
        ({"rivals": rivals, "batch_size": 2}, "assisted takes 1 at most"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(**options)
    with pytest.raises(ValueError, match="a rival takes `num_draft_tokens` only"):
        Setting(rival="assisted", draft_model="draft")


def test_what_failed_is_tried_again(evaluate, tmp_path):
    """It may have lacked a compiler, or memory."""
    rival = Rival("broken", Mock(side_effect=RuntimeError("no room")))
    call = {"rivals": [rival], "skip_failing": True, "results": tmp_path / "out.jsonl"}
    assert len(evaluate(**call).failures) == 1
    with pytest.raises(RuntimeError, match="no room"):
        evaluate(**call | {"skip_failing": False})


def test_one_that_fails_is_left_out_where_that_is_asked_for(evaluate, model):
    def fails(call):
        raise RuntimeError("no room")

    rivals = [Rival("broken", fails)]
    with pytest.raises(RuntimeError, match="no room"):
        evaluate(rivals=rivals)
    evaluation = evaluate(rivals=rivals, skip_failing=True)
    assert [failure.message for failure in evaluation.failures] == ["RuntimeError: no room"]
    assert evaluation.is_complete and evaluation.totals(evaluation.settings[1]).num_identical == 5


def test_decoding_is_timed_from_the_first_tokens_on(evaluate):
    evaluation = evaluate(batch_size=2)
    for setting in evaluation.settings:
        for call in evaluation.calls[setting.name].values():
            assert 0 < call.first_seconds < call.seconds and call.num_first_tokens == len(call.rows)
            assert call.decoding.num_tokens == call.num_new_tokens - len(call.rows)
            assert call.decoding.seconds == pytest.approx(call.seconds - call.first_seconds)
    plain, ours = evaluation.settings
    assert evaluation.totals(ours).decoding.num_pairs == 3 and evaluation.totals(plain).decoding is None


def test_the_clock_ends_no_row(model):
    ids = torch.tensor([[5, 6, 7]])
    call = {"input_ids": ids, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 1, "stopping_criteria": []}
    found = timed_generate(model.generate, model, call)
    assert [len(row) for row in found.new_ids] == [4] and found.num_first_tokens == 1


def test_repeats_are_pairs_of_one_prompt(evaluate):
    evaluation = evaluate(TEXTS[:2], repeats=3, draft_model=["suffix"])
    _, ours = evaluation.settings
    totals = evaluation.totals(ours)
    assert evaluation.is_complete and totals.num_prompts == totals.num_identical == 2
    assert totals.speedup.num_pairs == 6 and evaluation.spread_name == "quartiles"
    rounds = [call.statistics.num_rounds for call in evaluation.calls[ours.name].values()]
    assert rounds[:3] == rounds[:1] * 3, "nothing is copied from the repeat before"
