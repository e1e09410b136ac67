"""Every rule judges trees exactly, too: enumerated over all drafts and all its random decisions, in float64."""

import random
import sys
from dataclasses import replace

import pytest
import torch

import hf_speculative as hs
from hf_speculative.sampling.samplers import Greedy, Independent
from hf_speculative.verification import RULES, BlockVerification, SampledVerification, TokenVerification, residual, sampled
from tests.support import trees
from tests.support.branching import (
    BY_DISTRIBUTION,
    EXACT,
    WRONG,
    Branching,
    Table,
    all_drafts,
    branches,
    distance,
    drawn_then_fixed,
    extreme_pairs,
    pair,
    plain_sequences,
    sequences,
    with_replacement,
    without_replacement,
)
from tests.support.cases import slow_but

TREES = [[-1, -1, 0, 2], [-1, 0, 0, 2], [-1, 0, -1, 1], [-1, -1, 1, 2]]  # of depth 3
SIBLINGS = {"with replacement": with_replacement, "without replacement": without_replacement}
SIBLINGS["one drawn, others fixed"] = drawn_then_fixed


def bias(rule, p, q, parents, length=5, **options):
    """Of the first `length` tokens: a second round begins inside, whatever the first one keeps."""
    found = sequences(rule(), p, q, len(parents), length, parents=parents, **options)
    return distance(found, plain_sequences(p, length))


#: any two of tree, siblings and rule meet
DRAWN = [(BY_DISTRIBUTION[(i + j) % 2], tree, kind) for i, tree in enumerate(TREES) for j, kind in enumerate(SIBLINGS)]


@pytest.mark.parametrize("case", slow_but(DRAWN, DRAWN[5]), ids=str)
def test_drawn_trees_leave_the_distribution_as_it_is(case):
    rule, parents, siblings = case
    seed = TREES.index(parents)
    p, q = pair(seed, zeros=seed % 2 == 1)
    assert bias(rule, p, SIBLINGS[siblings](q), parents) < EXACT


@pytest.mark.parametrize("parents", slow_but(TREES, TREES[-1]), ids=str)
@pytest.mark.parametrize("rule", RULES.values())
def test_guesses_without_chance_leave_the_distribution_as_it_is(rule, parents):
    """They are a function of what stands before them, siblings that repeat each other included."""
    p = Table(0, zeros=len(set(parents)) == 3)
    assert bias(rule, p, guess, parents, deterministic=True) < EXACT


def guess(prefix, *elders):
    return torch.eye(3, dtype=torch.float64)[(sum(prefix) + len(prefix) * (1 + len(elders))) % 3]


@pytest.mark.parametrize("siblings", slow_but(SIBLINGS, "without replacement"))
@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_extreme_distributions(rule, siblings):
    for p, q in extreme_pairs():
        assert bias(rule, p, SIBLINGS[siblings](q), [-1, -1, 0, 1], length=4) < EXACT


@pytest.mark.parametrize("seed", slow_but([0, 1], 0))
@pytest.mark.parametrize("rule", RULES.values())
def test_ragged_trees(rule, seed):
    """What stands beyond a row's nodes looks like more of them."""
    p, q = pair(seed, zeros=True)
    options = {"num_tokens": lambda prefix, tokens: (sum(prefix) + len(prefix)) % 5}
    assert bias(rule, p, without_replacement(q), [-1, -1, 0, 2], **options) < EXACT


@pytest.mark.parametrize("parents", [[-1, -1, 0], [-1, 0, -1]], ids=str)
@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_what_was_drawn_before_may_decide_whether_a_node_is(rule, parents):
    p, q = pair(0)
    cut = {"num_tokens": lambda prefix, tokens: 3 if tokens[1] == 0 else 2}
    assert bias(rule, p, without_replacement(q), parents, **cut) < EXACT


@pytest.mark.parametrize("rule", RULES.values())
def test_a_chain_written_as_a_tree_is_judged_as_a_chain(rule):
    """Down to the coins."""
    most = 0
    for seed in range(20):
        target_probs, draft_probs = random_probs((64, 5, 3), seed), random_probs((64, 4, 3), seed + 100)
        tokens = draft_probs.flatten(0, 1).multinomial(1).view(64, 4)
        num_tokens, parents = torch.arange(64) % 5, torch.arange(-1, 3).expand(64, 4)
        verdicts = []
        for shape in (None, parents):
            sampler = Independent(None, 3, torch.Generator().manual_seed(seed), "probabilistic")
            verdicts.append(rule()(hs.Draft(tokens, draft_probs, num_tokens, shape), target_probs, sampler))
        chain, tree = verdicts
        assert chain.num_accepted.tolist() == tree.num_accepted.tolist()
        assert chain.next_token.tolist() == tree.next_token.tolist()
        proposed = torch.arange(4) < num_tokens[:, None]
        torch.testing.assert_close(chain.acceptance_prob[proposed], tree.acceptance_prob[proposed])
        most = max(most, int(chain.num_accepted.max()))
    assert most == 4


def random_probs(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("rule", RULES.values())
def test_rows_have_trees_of_their_own(rule):
    """Coins that fall on their likelier side: a row is judged in a batch as it is alone, without its filler."""
    generator = random.Random(0)
    parents = torch.tensor([trees.random_parents(9, generator) for _ in range(40)])
    target_probs, draft_probs = random_probs((40, 10, 3), 0), random_probs((40, 9, 3), 1)
    tokens = torch.tensor([[generator.randrange(3) for _ in range(9)] for _ in range(40)])
    together = rule()(hs.Draft(tokens, draft_probs, torch.arange(40) % 9 + 1, parents), target_probs, Greedy(None, 3))
    for row in range(40):
        n = row % 9 + 1
        own = [x[row : row + 1, :n] for x in (tokens, draft_probs, parents)]
        draft = hs.Draft(*own[:2], torch.tensor([n]), own[2])
        alone = rule()(draft, target_probs[row : row + 1, : n + 1], Greedy(None, 3))
        num_accepted = int(alone.num_accepted)
        assert together.num_accepted[row] == num_accepted and together.next_token[row] == alone.next_token
        assert together.path[row, :num_accepted].tolist() == alone.path[0, :num_accepted].tolist()
    assert together.num_accepted.max() > 1


@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize("rule", RULES.values())
def test_survival_is_the_chance_that_a_node_is_kept(rule, siblings):
    p, q = pair(1)
    parents = [-1, -1, 0, 2]
    cases, draft, target_probs = all_drafts(p, SIBLINGS[siblings](q), [()], 4, parents=parents)
    chances = torch.tensor([case[3] for case in cases], dtype=torch.float64)
    kept = torch.zeros(len(cases), 4, dtype=torch.float64)
    for verdict, weights in branches(lambda sampler: rule()(draft, target_probs, sampler)):
        is_kept = torch.arange(verdict.path.shape[1]) < verdict.num_accepted[:, None]
        kept.scatter_add_(1, verdict.path * is_kept, weights[:, None] * is_kept)
    torch.testing.assert_close(chances @ verdict.acceptance_prob, chances @ kept)
    if rule is not BlockVerification:  # which tells the chance once the node is drawn, whatever follows it
        torch.testing.assert_close(verdict.acceptance_prob, kept)


def num_kept(rule, p, q, parents):
    cases, draft, target_probs = all_drafts(p, q, [()], len(parents), parents=parents)
    acceptance_prob = rule()(draft, target_probs, Branching([])).acceptance_prob
    return sum(case[3] * row.sum().item() for case, row in zip(cases, acceptance_prob, strict=True))


def test_toy_fractions():
    """With and without replacement, of 2 and 3 siblings."""
    p, q = Table(0, iid=[1 / 2, 1 / 3, 1 / 6]), Table(0, iid=[1 / 6, 1 / 3, 1 / 2])
    fractions = {with_replacement: (13 / 18, 83 / 108), without_replacement: (7 / 9, 1)}
    for siblings, expected in fractions.items():
        for rule in BY_DISTRIBUTION:  # they differ only below
            found = [num_kept(rule, p, siblings(q), [-1] * n) for n in (2, 3)]
            assert found == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_traversal_keeps_at_least_what_recursive_rejection_keeps(siblings):
    gains = []
    for seed in range(6):
        p, q = pair(seed, zeros=seed > 3)
        by_token, by_block = (num_kept(rule, p, SIBLINGS[siblings](q), [-1, -1, 0, 0, 2]) for rule in BY_DISTRIBUTION)
        gains.append(by_block - by_token)
    assert min(gains) > -EXACT and max(gains) > 0.01


def test_a_drawn_sibling_before_fixed_ones_keeps_as_much_as_can_be():
    """Hu et al. 2025 (arXiv 2502.18779): p of the fixed ones, and min(p, q) of the others."""
    for seed in range(6):
        p, q = pair(seed)
        drawn = drawn_then_fixed(q, 2)(())
        most = torch.where(drawn > 0, torch.minimum(p(()), drawn), p(())).sum().item()
        assert num_kept(TokenVerification, p, drawn_then_fixed(q, 2), [-1, -1]) == pytest.approx(most, abs=EXACT)


# Negative controls: the enumeration sees the bugs it is there for


@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_control_siblings_without_replacement_judged_as_if_with_are_caught(rule):
    p, q = pair(0)
    drawn, judged_by = without_replacement(q), with_replacement(q)
    assert bias(rule, p, drawn, [-1, -1, 0], length=3, judged_by=judged_by) > WRONG


@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_control_guesses_judged_as_if_drawn_are_caught(rule):
    """Nodes that are set, of beams or grafted, by the distribution that a draft model has there."""
    p, q = pair(0)
    assert bias(rule, p, guess, [-1, -1, 0], length=3, judged_by=without_replacement(q)) > WRONG


@pytest.mark.parametrize("rule", BY_DISTRIBUTION)
def test_control_a_residual_forgotten_is_caught(rule, monkeypatch):
    p, q = pair(0)
    right = residual.take_turns

    def forgets(draft, tree, target_probs, pass_on):
        return replace(right(draft, tree, target_probs, pass_on), residual=target_probs)

    monkeypatch.setattr(sys.modules[rule.__module__], "take_turns", forgets)
    assert bias(rule, p, without_replacement(q), [-1, -1, 0], length=3) > WRONG


def test_control_the_longer_of_two_equal_branches_is_caught(monkeypatch):
    """Two nodes guess one token, and what was drawn behind them decides which of them counts."""
    monkeypatch.setattr(sampled, "_is_repeated", lambda draft, tree: torch.zeros_like(draft.tokens).bool())
    always_one = lambda prefix, *elders: torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)  # noqa: E731
    assert bias(SampledVerification, Table(0), always_one, [-1, -1, 1], deterministic=True) > WRONG
