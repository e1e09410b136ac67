"""What follows from counted rounds and known times: acceptance, speedup, spread. What the counts rule out never appears."""

import json
import math

import pytest

from hf_speculative import theory
from hf_speculative.compatibility.trials import Expected, Trial

#: rounds of 0, 1, ... draft tokens, in plain steps
CHEAP, DEAR = (1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 1.9, 3.2, 4.3, 5.4)


def trial(rounds, times=CHEAP, repeat=10, **more):
    return Trial("draft_model", {"draft_model": "small"}, "greedy", 99, (tuple(rounds) * repeat,) * 2, times, **more)


def test_acceptance_by_position_counts_drafts_that_got_there():
    found = trial([(4, 4), (4, 2), (4, 0), (2, 2)])
    assert found.acceptance == pytest.approx([3 / 4, 3 / 4, 3 / 8, 3 / 8]), (
        "the draft of two says nothing about a third"
    )
    assert found.mean_acceptance_length == 3.0
    assert trial([(4, 4), (4, 0)], is_chain=False).acceptance == [0.5] * 4


def test_speedup_is_that_of_theory_for_chains_of_one_length():
    found = trial([(4, 4), (4, 2), (4, 1), (4, 0)])
    by_length = [theory.speedup_from_survival(found.acceptance[:n], 0.0, CHEAP[n], CHEAP[0]) for n in range(1, 5)]
    assert found.speedup.value == pytest.approx(max(by_length))
    assert found.draft_length == by_length.index(max(by_length)) + 1
    assert found.cost_of_round == pytest.approx(CHEAP[found.draft_length])


def test_rounds_that_drafted_nothing_count():
    found = trial([(4, 4)] + [(0, 0)] * 4)
    assert found.speedup.value == pytest.approx(9 / (1.4 + 4)) and found.num_drafts == 20


def test_rows_wait_for_the_longest_draft_beside_them():
    """So a short draft costs what the long one does, and is no shorter for it where acceptance is counted."""
    found = trial([(4, 4, 4), (1, 1, 4), (0, 0, 4)], is_chain=False)
    assert found.speedup.value == pytest.approx((5 + 2 + 1) / (3 * CHEAP[4]))
    assert found.acceptance == [1.0, 0.5, 0.5, 0.5] and found.num_drafts == 20 * 2
    assert trial([(2, 1)]).speedup == trial([(2, 1, 2)]).speedup


@pytest.mark.parametrize("rounds", [[(4, 4)], [(4, 0)], [(3, 1), (0, 0)], [(2, 2), (4, 3), (1, 0)]])
@pytest.mark.parametrize("times", [CHEAP, DEAR])
@pytest.mark.parametrize("is_chain", [True, False])
def test_no_speedup_is_above_what_the_counts_allow(rounds, times, is_chain):
    found = trial(rounds, times, is_chain=is_chain)
    allowed = 1 + sum(found.accepted) / len(found.rounds)
    assert 0 < found.speedup.low <= found.speedup.value <= allowed and found.speedup.value <= found.speedup.high <= 5
    assert not any(isinstance(v, float) and math.isnan(v) for v in found.to_dict().values())


@pytest.mark.parametrize("texts", [(), (((0, 0),) * 20,)])
def test_nothing_drafted_has_no_figures(texts):
    found = Trial("ngram", {}, "greedy", 20, texts, (1.0,))
    values = found.to_dict()
    for name in (
        "expected_speedup",
        "mean_acceptance_length",
        "cost_of_draft_token",
        "cost_of_round",
        "best_draft_length",
    ):
        assert values[name] is None, name
    assert values["per_position_acceptance_rate"] == [] and json.dumps(values, allow_nan=False)


def test_few_rounds_have_no_spread_and_give_no_verdict():
    found = Trial("ngram", {}, "greedy", 20, (((4, 4),) * 3,), CHEAP).speedup
    assert str(found) == "3.57x (too few rounds to tell)" and not found.is_gain and not found.is_loss


def test_the_spread_is_wider_for_texts_that_differ():
    alike = trial([(4, 4), (4, 0)]).speedup
    apart = Trial("draft_model", {}, "greedy", 99, (((4, 4),) * 20, ((4, 0),) * 20), CHEAP).speedup
    assert apart.value == pytest.approx(alike.value)
    assert apart.low < alike.low < alike.high < apart.high


def test_needed_acceptance_is_where_theory_breaks_even():
    found = trial([(4, 1)])
    needed = found.needed_acceptance
    assert max(theory.expected_tokens(needed, n) / CHEAP[n] for n in range(1, 5)) == pytest.approx(1, abs=1e-3)
    assert trial([(4, 1)], times=(1.0, 2.1, 3.2, 4.3, 5.4)).needed_acceptance is None, "not even if all is kept"


def test_verdicts_need_the_whole_spread():
    assert Expected(1.3, 1.1, 1.5).is_gain and Expected(0.8, 0.7, 0.9).is_loss
    assert not Expected(1.1, 0.9, 1.3).is_gain and not Expected(1.1, 0.9, 1.3).is_loss


def test_the_cost_of_a_draft_token_is_its_share_of_the_rounds():
    assert trial([(4, 0)], draft_share=0.5).cost_of_token == pytest.approx(0.5 * 1.4 / 4)


def test_the_formula_for_counted_rounds():
    assert theory.speedup_from_rounds([4, 0], [3, 0], [1.0, 2.0, 2.0, 2.0, 2.0]) == pytest.approx(5 / 3)
    for drafted, accepted, times, message in (
        ([], [], [1.0], "no rounds"),
        ([1], [2], [1.0, 1.0], "does not go with"),
        ([2], [1], [1.0, 1.0], "too short"),
        ([1], [1], [1.0, 0.5], "less than that of a plain step"),
        ([1], [1], [1.0, math.nan], "out of range"),
    ):
        with pytest.raises(ValueError, match=message):
            theory.speedup_from_rounds(drafted, accepted, times)
