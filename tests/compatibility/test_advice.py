"""The table of verdicts: what is said about which figures."""

import pytest

from hf_speculative.compatibility.advice import Advice
from tests.support.evaluations import handmade


def measured(a2, a4=(9.0,) * 3, plain=(4.0,) * 3, rounds=(3, 3)):
    """Plain decoding and a draft at two lengths, greedy, with these seconds for their calls."""
    evaluation = handmade([plain, a2, a4], num_rounds=rounds)
    evaluation.header["spread"] = "quartiles"
    return evaluation


GOOD, POOR, FAIR = (2.0, 2.1, 2.2), (5.0, 5.1, 5.2), (3.9, 4.0, 4.1)
VERDICTS = {
    "good": (measured(GOOD), True, 'Worth it. Greedy: take "a, 2 tokens", 1.90x (1.86 to 1.95) plain decoding'),
    "poor": (measured(POOR), False, "Not worth it: decode plainly. Greedy: decode plainly, no draft is faster here"),
    "fair": (measured(FAIR), None, 'Too close to tell. Greedy: too close to tell: "a, 2 tokens" is at 1.00x'),
    "one": (measured([2.0], [9.0], [4.0]), None, "Greedy: too few batches to tell, 1 where it takes 2; so far"),
    "none": (measured([], [], []), False, "Greedy: no source could be measured."),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    evaluation, is_worth_it, sentence = VERDICTS[name]
    advice = Advice({1: evaluation}, {"target": 10})
    assert advice.is_worth_it is is_worth_it and sentence in advice.verdict
    assert "nan" not in advice.verdict and "None" not in advice.verdict
    assert (advice.recommendation("greedy") is None) == (name == "none") and advice.recommendation("sampled") is None


def test_what_pays_at_one_batch_size_and_not_at_another():
    advice = Advice({1: measured(GOOD), 8: measured(POOR)}, {})
    assert advice.verdict.startswith("Worth it at batch 1, not worth it at batch 8. Greedy at batch 1: take ")
    assert "Greedy at batch 8: decode plainly" in advice.verdict
    assert advice.is_worth_it and advice.pays_at(1) and advice.pays_at(8) is False
    one, other = (Advice({size: measured(GOOD)}, {}).verdict for size in (1, 8))
    assert one == other, "one size needs no name"
