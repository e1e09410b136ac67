"""Every rule gives exactly the target's distribution: enumerated over all drafts and all random decisions, in float64."""

import math
from fractions import Fraction

import pytest
import torch

from hf_speculative import Draft, Rule, Verdict
from hf_speculative.sampling.samplers import DRAWN, Greedy, Independent
from hf_speculative.verification import RULES, BlockVerification, TokenVerification
from hf_speculative.verification.residual import is_proposed, probability_of
from tests.support.branching import BY_DISTRIBUTION, EXACT, WRONG, Table, bias, extreme_pairs, one_hot, one_round, pair


def expected_accepted(rule, p, q, gamma, **options):
    return sum(w * (len(tokens) - 1) for tokens, w in one_round(rule, p, q, [()], gamma, **options)[()].items())


@pytest.mark.parametrize(
    ("gamma", "zeros"), [(1, False), (1, True), (2, False), (2, True), pytest.param(3, True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("rule", RULES.values())
def test_output_has_the_targets_distribution(rule, gamma, zeros):
    for seed in range(6 if gamma < 3 else 2):
        # So long that a second round begins inside.
        assert bias(rule, *pair(seed, zeros), gamma, length=gamma + 2) < EXACT


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("gamma", [0, 1, 2])
def test_one_hot_proposals_keep_the_targets_distribution(rule, gamma):
    for seed in range(6):
        p, q = pair(seed, zeros=seed % 2 == 1)
        assert bias(rule, p, one_hot(q), gamma, length=gamma + 3, deterministic=True) < EXACT


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("rule", RULES.values())
def test_extreme_distributions(rule, gamma):
    for p, q in extreme_pairs():
        assert bias(rule, p, q, gamma, length=4) < EXACT


@pytest.mark.parametrize("rule", RULES.values())
def test_ragged_drafts(rule):
    """Rows of a batch propose different numbers of tokens, here by their prefix."""
    for seed in range(3):
        ragged = {"num_tokens": lambda prefix, tokens: (sum(prefix) + len(prefix)) % 3}
        assert bias(rule, *pair(seed, zeros=True), 2, length=4, **ragged) < EXACT


@pytest.mark.parametrize("rule", RULES.values())
def test_an_empty_draft_costs_one_draw(rule):
    """Plain rounds are a large part of a call whose drafts are rare."""
    draft = Draft(torch.zeros(2, 0, dtype=torch.long), None, torch.zeros(2, dtype=torch.long))
    probs = torch.eye(3)[:2, None]
    with torch.profiler.profile() as profile:
        verdict = rule()(draft, probs, Greedy(None, 3))
    assert verdict.next_token.tolist() == [0, 1] and verdict.num_accepted.tolist() == [0, 0]
    keys = {event.key for event in profile.key_averages()}
    assert {"aten::argmax"} <= keys <= {"aten::argmax", "aten::select", "aten::as_strided"}


# How much is accepted: numbers of the papers


def test_toy_fractions():
    p, q = Table(0, iid=[1 / 2, 1 / 3, 1 / 6]), Table(0, iid=[1 / 6, 1 / 3, 1 / 2])
    token = [Fraction(2, 3), Fraction(10, 9), Fraction(38, 27)]
    block = [Fraction(2, 3), Fraction(7, 6), Fraction(14, 9)]
    for gamma, (by_token, by_block) in enumerate(zip(token, block, strict=True), start=1):
        assert math.isclose(expected_accepted(TokenVerification(), p, q, gamma), by_token, abs_tol=1e-12)
        assert math.isclose(expected_accepted(BlockVerification(), p, q, gamma), by_block, abs_tol=1e-12)


def test_the_block_papers_example():
    """Sun et al. 2025, section 2: p = (1/3, 2/3), q = (2/3, 1/3); A is 0 and B is 1."""
    p, q = Table(0, iid=[1 / 3, 2 / 3]), Table(0, iid=[2 / 3, 1 / 3])
    assert math.isclose(expected_accepted(TokenVerification(), p, q, 2), 10 / 9)
    assert math.isclose(expected_accepted(BlockVerification(), p, q, 2), 11 / 9)
    distribution = one_round(BlockVerification(), p, q, [()], 2)[()]
    twenty_sevenths = {"000": 1, "001": 2, "010": 2, "011": 4, "1": 9, "100": 1, "101": 2, "11": 3, "110": 1, "111": 2}
    expected = {tuple(map(int, tokens)): count / 27 for tokens, count in twenty_sevenths.items()}
    assert distribution == pytest.approx(expected, abs=EXACT, rel=0)


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_block_accepts_at_least_what_token_accepts(gamma):
    for seed in range(5):
        p, q = pair(seed)
        by_token, by_block = (expected_accepted(rule(), p, q, gamma) for rule in BY_DISTRIBUTION)
        assert by_block > by_token - EXACT
        if gamma == 1:
            assert math.isclose(by_token, by_block)


def test_all_rules_accept_alike_for_one_hot_proposals():
    p, q = pair(4)
    accepted = [expected_accepted(rule(), p, one_hot(q), 3, deterministic=True) for rule in RULES.values()]
    assert max(accepted) - min(accepted) < EXACT


# Negative controls: the enumeration sees the bugs it is there for


class DropsCorrection(Rule):
    """Redraws from p after a rejection, instead of from the residual."""

    def __call__(self, draft, target_probs, sampler):
        p, q = probability_of(target_probs, draft.tokens), probability_of(draft.probs, draft.tokens)
        accepted = sampler.bernoulli((p / q).clamp(max=1)) & is_proposed(draft)
        tau = accepted.long().cumprod(1).sum(1)
        return Verdict(tau, sampler.categorical(target_probs[torch.arange(len(tau)), tau][:, None])[:, 0])


def test_control_a_wrong_rule_is_caught():
    assert bias(DropsCorrection, *pair(0), 2, length=4) > WRONG


@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_control_argmax_drafts_judged_by_softmax_are_caught(rule):
    p, q = pair(0)
    assert bias(rule, p, one_hot(q), 2, length=4, judged_by=q) > WRONG


def test_zero_residual_falls_back_to_the_target():
    """p == q up to rounding, and a coin that still says no: transformers divides by the zero sum and raises."""
    distribution = torch.tensor([0.25, 0.75])
    draft = Draft(torch.tensor([[1]]), distribution.view(1, 1, 2), torch.tensor([1]))

    class Refuses(Independent):
        def bernoulli(self, probability):
            return torch.zeros_like(probability, dtype=torch.bool)

    for rule in BY_DISTRIBUTION:
        verdict = rule()(draft, distribution.expand(1, 2, 2), Refuses(None, 2, None, DRAWN))
        assert verdict.num_accepted.item() == 0 and verdict.next_token.item() in (0, 1)


@pytest.mark.parametrize("rule", RULES.values())
def test_a_token_of_probability_zero_is_never_emitted(rule):
    p = torch.tensor([0.0, 0.5, 0.5]).expand(512, 3, 3)
    q = torch.tensor([0.9, 0.05, 0.05]).expand(512, 2, 3)
    draft = Draft(torch.zeros(512, 2, dtype=torch.long), q, torch.full((512,), 2))
    verdict = rule()(draft, p, Independent(None, 3, None, DRAWN))
    assert verdict.num_accepted.max() == 0 and verdict.next_token.min() > 0


@pytest.mark.parametrize("rule", RULES.values())
def test_greedy_is_a_one_hot_distribution_for_every_rule(rule):
    scores = torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    sampler = Greedy(None, 3)
    for tokens, num_accepted, next_token in [([1, 0], 2, 2), ([1, 1], 1, 0), ([0, 0], 0, 1)]:
        draft = Draft(torch.tensor([tokens]), None, torch.tensor([2]))
        verdict = rule()(draft, sampler.probs(scores), sampler)
        assert (verdict.num_accepted.item(), verdict.next_token.item()) == (num_accepted, next_token)
