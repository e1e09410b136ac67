"""The formulas against the numbers their papers print."""

import math

import pytest
import torch

from hf_speculative import theory

# Leviathan et al. 2023, Table 1, the draft's cost 0: alpha, gamma, speed
TABLE_1 = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]

# Leviathan et al. 2023, Table 4: by c, gamma, alpha and the speed the formula gives there; translation, then summaries
TABLE_4 = {
    0.02: [(7, 0.75, 3.2), (7, 0.62, 2.3), (5, 0.65, 2.4), (5, 0.53, 1.9)],
    0.04: [(7, 0.80, 3.3), (5, 0.68, 2.4), (5, 0.73, 2.6), (3, 0.55, 1.8)],
    0.11: [(7, 0.82, 2.5), (3, 0.71, 2.0), (3, 0.74, 2.0), (3, 0.56, 1.6)],
}

COSTS = (0.01, 0.02, 0.05, 0.1)
BEST_GAMMA = {0.5: (5, 4, 3, 2), 0.6: (7, 6, 4, 3), 0.7: (9, 8, 6, 4), 0.8: (14, 11, 8, 6), 0.9: (24, 19, 13, 10)}


def test_leviathans_tables():
    for alpha, gamma, speed in TABLE_1:
        assert round(theory.walltime_factor(alpha, gamma, cost=0), 2) == speed
    for cost, (gamma, alpha, speed) in [(cost, row) for cost, rows in TABLE_4.items() for row in rows]:
        # alpha and c are printed to two decimals, which moves the speed by more than half of its last digit
        assert theory.walltime_factor(alpha, gamma, cost) == pytest.approx(speed, abs=0.07)
    for alpha, best in BEST_GAMMA.items():
        assert tuple(theory.best_gamma(alpha, cost) for cost in COSTS) == best


def test_expected_tokens_of_a_perfect_draft():
    assert theory.expected_tokens(1, 5) == 6
    assert theory.expected_tokens(1 - 1e-16, 5) == pytest.approx(6)  # where the closed form is 0 / 0, nearly


def test_acceptance_rate_is_one_less_the_total_variation():
    p, q = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    rate = theory.acceptance_rate(p, q)
    assert rate.shape == (3, 4)
    torch.testing.assert_close(rate, 1 - (p - q).abs().sum(-1) / 2)
    torch.testing.assert_close(theory.acceptance_rate(p, p), torch.ones(3, 4, dtype=torch.float64))
    assert theory.acceptance_rate(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 0


COUNT = r"is a number of tokens: give an integer >= 0\.$"
FROM_ZERO = r"is out of range: give a finite number >= 0\.$"
HALVES = torch.tensor([0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(1.2, 3), r"^`alpha=1\.2` is a probability: give a number from 0 to 1\.$"),
        (lambda: theory.best_gamma(-0.1, 0), r"^`alpha=-0\.1` is a probability"),
        (lambda: theory.walltime_factor(math.nan, 3, 0), r"^`alpha=nan` is a probability"),
        (lambda: theory.expected_tokens(0.5, -1), r"^`gamma=-1` " + COUNT),
        (lambda: theory.walltime_factor(0.5, 2.5, 0), r"^`gamma=2\.5` " + COUNT),
        (lambda: theory.best_gamma(0.5, 0.1, -2), r"^`max_gamma=-2` " + COUNT),
        (lambda: theory.walltime_factor(0.5, 2, -0.1), r"^`cost=-0\.1` " + FROM_ZERO),
        (lambda: theory.walltime_factor(0.5, 2, math.inf), r"^`cost=inf` " + FROM_ZERO),
        (lambda: theory.best_gamma(0.5, math.nan), r"^`cost=nan` " + FROM_ZERO),
        (lambda: theory.acceptance_rate(HALVES, torch.ones(3) / 3), r"have the shapes \(2,\) and \(3,\)"),
        (lambda: theory.acceptance_rate(torch.tensor([3.0, -2.0]), HALVES), "^`target_probs` has rows that are not"),
        (lambda: theory.acceptance_rate(HALVES, torch.tensor([0.5, 0.4])), "^`draft_probs` has rows that are not"),
    ],
)
def test_errors_name_the_argument_the_value_and_the_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call()
