"""The adaptive draft length: near the best constant one, cheap where drafts are useless, and exact."""

import copy
import functools
import itertools
import math
import random
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from hf_speculative import Draft, SpeculativeConfig, theory
from hf_speculative.call.options import read_options
from hf_speculative.call.parts import make_schedule
from hf_speculative.schedules import Adaptive, AdaptiveTree, AlignRows, BestNodes, ConfidenceStop, Constant, Heuristic
from hf_speculative.schedules.adaptive import CREDIT_A_ROUND, FIRST_CREDIT, MOST_SAVED, RESTS
from hf_speculative.schedules.remaining import Remaining
from hf_speculative.types import Costs
from hf_speculative.verification import BlockVerification, TokenVerification
from tests.support.branching import Table, branches, distance, plain_sequences
from tests.support.cases import slow_but

#: costs of a round: in proportion to the draft; with a jump where a pass gets wider than one column; hardly any
COSTS = {
    "cheap": {0: 1.0, 1: 1.03, 8: 1.24},
    "even": {0: 1.0, 1: 1.15, 8: 2.2},
    "dear": {0: 1.0, 1: 1.4, 8: 4.2},
    "a jump": {0: 1.0, 1: 1.5, 2: 1.6, 8: 2.2},
}


def batch_at(lengths, max_length=10_000, refills=False):
    rooms = [max(0, max_length - length - 1) for length in lengths]
    is_unread = not any(lengths)
    return SimpleNamespace(
        rows=list(range(len(lengths))),
        host_lengths=lengths,
        host_padding=[0] * len(lengths),
        is_unread=is_unread,
        rooms=rooms,
        branches=False,
        grows_levels=False,
        max_length=max_length,
        prompt_width=0,
        refills=refills,
    )


def simulate(schedule, costs, accepts, num_tokens, seed, learned=None) -> tuple[float, list[int]]:
    """Time a token, and the lengths drafted. `accepts(position)` is the chance that a draft token there is kept.

    Args:
        learned: what an earlier call has left.
    """
    rng, curve = random.Random(seed), Costs({1: costs}).curve(1, 16)
    schedule.begin(batch_at([0], num_tokens), lambda: Costs({1: costs}))
    schedule.learned = learned or schedule.learned
    position, time, lengths = 0, 0.0, []
    while position < num_tokens:
        (length,) = schedule.plan(batch_at([1 + position]))
        # As tokens of a sampled draft: kept for sure or by a coin, whose chance is known afterwards.
        chances = []
        for i in range(length):
            chance = accepts(position + i)
            is_sure = rng.random() < 2 * chance - 1
            chances.append(1.0 if is_sure else rng.random() * min(1.0, 2 * chance))
        acceptance_prob = list(itertools.accumulate(chances, lambda a, b: a * b))
        kept = next((i for i, chance in enumerate(chances) if rng.random() >= chance), length)
        schedule.update(SimpleNamespace(rows=[0], acceptance_prob=[acceptance_prob]))
        position, time = position + kept + 1, time + curve[length]
        lengths.append(length)
    return time / position, lengths


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("alpha", slow_but([0.3, 0.5, 0.7, 0.8, 0.9, 0.95], 0.3, 0.8))
def test_within_five_percent_of_the_best_constant_length(name, alpha):
    curve = Costs({1: COSTS[name]}).curve(1, 16)
    best = min(time / theory.expected_tokens(alpha, n) for n, time in enumerate(curve))
    found = [simulate(Adaptive(), COSTS[name], lambda position: alpha, 500, seed)[0] for seed in range(12)]
    assert best / (sum(found) / len(found)) > 0.95


@pytest.mark.parametrize("name", COSTS)
def test_a_useless_draft_costs_little(name):
    found = [simulate(Adaptive(), COSTS[name], lambda position: 0.01, 200, seed)[0] for seed in range(5)]
    assert 1 / max(found) > 0.95


@pytest.mark.parametrize("name", COSTS)
def test_a_text_that_becomes_predictable_is_drafted_again(name):
    for seed in range(5):
        _, lengths = simulate(Adaptive(), COSTS[name], lambda position: 0.95 * (position > 150), 400, seed)
        assert max(lengths[:130]) < 8 and min(lengths[-20:]) >= 2


def test_the_length_grows_with_a_draft_that_is_always_right():
    _, lengths = simulate(Adaptive(), COSTS["even"], lambda position: 1.0, 400, seed=0)
    assert lengths[0] < 8 and lengths[-1] == max(lengths) == 16


def test_a_draft_that_can_never_pay_is_not_even_tried():
    _, lengths = simulate(Adaptive(), {0: 1.0, 1: 2.1, 8: 9.5}, lambda position: 1.0, 100, seed=0)
    assert set(lengths) == {0}


def test_one_length_for_all_rows_within_what_each_can_use():
    schedule = Adaptive(8, costs=Costs({1: {0: 1.0, 1: 1.05}, 2: {0: 1.0, 2: 1.4, 3: 3.0}}))
    assert schedule.plan(batch_at([0, 0])) == [0, 0], "the prompt's round"
    for _ in range(20):
        schedule.update(SimpleNamespace(rows=[0, 1], acceptance_prob=[[1.0, 1.0], [0.0, 0.0]]))

    def plan(lengths, **batch):
        return copy.deepcopy(schedule).plan(batch_at(lengths, **batch))

    refilled = plan([5, 5], refills=True)
    assert plan([5, 5]) == [0, 0], "the row that is never right would be done later"
    assert plan([9_000, 5]) == [0, 0]
    assert min(plan([5, 9_000])) >= 1, "the row that is never right has little left"
    (one,) = schedule.plan(batch_at([5]))
    assert refilled[0] == refilled[1] and 1 <= refilled[0] < one == 8, "it shares the cost, not the gain"
    assert plan([5, 5], max_length=7) == [1, 1]
    assert plan([5, 6], max_length=7) == [1, 0]
    assert plan([6, 6], max_length=7) == [0, 0]


def simulate_batch(schedule, costs, accepts, num_tokens, seed) -> float:
    """Time until all rows have `num_tokens`; draft tokens of row i are kept with the chance `accepts[i]`."""
    rng, done, time = random.Random(seed), [0] * len(accepts), 0.0
    schedule.begin(batch_at(done, num_tokens), lambda: costs)
    while rows := [row for row, num in enumerate(done) if num < num_tokens]:
        batch = batch_at([1 + done[row] for row in rows], 1 + num_tokens)
        batch.rows = rows
        plan, chances = schedule.plan(batch), [accepts[row] for row in rows]
        acceptance_prob = [[chance ** (i + 1) for i in range(num)] for chance, num in zip(chances, plan, strict=True)]
        schedule.update(SimpleNamespace(rows=rows, acceptance_prob=acceptance_prob))
        time += costs.curve(len(rows), 16)[max(plan)]
        for row, num in zip(rows, plan, strict=True):
            while num and rng.random() < accepts[row]:
                done[row], num = done[row] + 1, num - 1
            done[row] += 1
    return time


@pytest.mark.parametrize("accepts", [[0.9] * 7 + [0.1], [0.9, 0.1], [0.8, 0.6, 0.4, 0.2]])
def test_a_draft_that_helps_most_rows_does_not_make_the_batch_longer(accepts):
    """All rows share a round's time, and the slowest one ends the batch."""
    costs = Costs({len(accepts): {0: 1.0, 1: 1.46, 2: 1.76, 4: 2.08, 8: 3.0}})
    times = [simulate_batch(Adaptive(), costs, accepts, 96, seed) for seed in range(4)]
    assert max(times) < 96 / 0.93


def test_rows_alike_are_drafted_for_as_one_is():
    costs = Costs({1: COSTS["even"]})
    one, eight = ([simulate_batch(Adaptive(), costs, [0.8] * n, 96, seed) for seed in range(6)] for n in (1, 8))
    assert sum(eight) / 6 < 0.8 * 96 and sum(one) / 6 < 0.7 * 96


def test_how_long_a_batch_takes():
    """Rows leave as they are done, and passes get cheaper; where others take their lanes, all tokens count alike."""
    times = np.array([[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    remaining = Remaining(batch_at([10, 4], max_length=12))
    assert remaining.tokens.tolist() == [2, 8]
    ways = np.array([[1.0, 1.0, 4.0], [1.0, 2.0, 8.0]])
    assert remaining.seconds(ways, times).tolist() == [2 * 3 + 6 * 2, 2 * 3 + 2 * 2, 3], "one round at least"
    assert remaining.saved(ways[:, 1], times[:, 0]) == (2 * 3 + 6 * 2) - (1 * 3 + 5 * 2)
    assert remaining.saved(ways[:, 2] + 9, times[:, 0]) == 2 * 3 + 6 * 2
    refilled = Remaining(batch_at([10, 4], max_length=12, refills=True))
    assert refilled.seconds(np.array([[1.0], [3.0]]), times[:, :1]).tolist() == [10 / 4 * 3]
    assert refilled.saved(np.array([1.0, 3.0]), times[:, 0]) == 2 * 3


def test_schedules_around_it_pass_everything_on():
    for around in (AlignRows(Adaptive(4)), ConfidenceStop(Adaptive(4), 0.5)):
        around.begin(batch_at([0]), lambda: Costs({1: {0: 1.0, 1: 1.1}}))
        (length,) = around.plan(batch_at([3]))
        around.update(SimpleNamespace(rows=[0], acceptance_prob=[[1.0] * length]))
        assert length > 0 and sum(around.schedule.rows[0].kept) == length


def test_costs_between_and_beyond_what_is_known():
    costs = Costs({1: {0: 1.0, 2: 2.0, 4: 2.5}, 3: {0: 3.0}})
    assert costs.curve(1, 6) == [1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0]
    assert costs.curve(2, 1) == [2.0, 2.25] and costs.curve(9, 1) == [3.0, 3.0]
    for rounds, message in [
        ({}, "gives no costs"),
        ({1: {1: 2.0}}, "lacks 0 draft tokens"),
        ({1: {0: 0.0}}, "above 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Costs(rounds)
    with pytest.raises(ValueError, match="max_tokens=0"):
        Adaptive(0)


# Exactness: every draft, every outcome of every decision, over several rounds, with the schedule's state in each branch


def distribution_of(rule, p, q, schedule, length, peek=None):
    """The distribution of the first `length` tokens, and the lengths drafted in each round.

    Args:
        peek: cuts drafts by their tokens: a schedule that decides about a token after it was drawn.
    """
    vocab, final, lengths = len(p(())), defaultdict(float), defaultdict(set)
    pending = [((), 1.0, schedule, 0)]
    while pending:
        prefix, mass, schedule, num_rounds = pending.pop()
        (n,) = schedule.plan(batch_at([1 + len(prefix)]))
        lengths[num_rounds].add(n)
        drafts = list(itertools.product(range(vocab), repeat=n))
        probs = [[q(prefix + x[:i]) for i in range(n)] for x in drafts]
        drawn = [
            math.prod(q_row[i].item() for q_row, i in zip(row, x, strict=True))
            for row, x in zip(probs, drafts, strict=True)
        ]
        sizes = [n if peek is None else peek(x) for x in drafts]
        q_probs = torch.stack([torch.stack(row) for row in probs]) if n else torch.empty(1, 0, vocab)
        p_probs = torch.stack([torch.stack([p(prefix + x[:i]) for i in range(n + 1)]) for x in drafts])
        draft = Draft(torch.tensor(drafts, dtype=torch.long).view(len(drafts), n), q_probs, torch.tensor(sizes))
        for verdict, weights in branches(functools.partial(rule, draft, p_probs)):
            for b, x in enumerate(drafts):
                probability = mass * drawn[b] * weights[b].item()
                if probability == 0:
                    continue
                sequence = (*prefix, *x[: verdict.num_accepted[b]], verdict.next_token[b].item())
                if len(sequence) >= length:
                    final[sequence[:length]] += probability
                    continue
                after = copy.deepcopy(schedule)
                after.update(
                    SimpleNamespace(rows=[0], acceptance_prob=[verdict.acceptance_prob[b, : sizes[b]].tolist()])
                )
                pending.append((sequence, probability, after, num_rounds + 1))
    return final, lengths


def deciding():
    """Sure to decide differently in different branches."""
    return Adaptive(2, costs=Costs({1: {0: 1.0, 1: 1.62, 2: 2.12}}))


@pytest.mark.parametrize("rule", [TokenVerification, BlockVerification])
def test_the_output_has_exactly_the_targets_distribution(rule):
    for seed in range(2):
        p = Table(seed, vocab=2)
        found, lengths = distribution_of(rule(), p, Table(seed + 50, vocab=2), deciding(), length=4)
        assert distance(found, plain_sequences(p, 4)) < 1e-12
        assert all(len(lengths[round]) >= 2 for round in (1, 2)), "decisions differ between branches"


@pytest.mark.parametrize("rule", [TokenVerification, BlockVerification])
def test_control_a_schedule_that_peeks_is_caught(rule):
    p, q = Table(0, vocab=2), Table(50, vocab=2)
    found, _ = distribution_of(
        rule(), p, q, deciding(), length=4, peek=lambda x: next((i for i, t in enumerate(x) if t), len(x))
    )
    assert distance(found, plain_sequences(p, 4)) > 1e-3


@pytest.mark.parametrize("rule", [TokenVerification, BlockVerification])
def test_survival_is_the_chance_of_acceptance(rule):
    """Its mean over all drafts is that of the tokens kept."""
    p, q = Table(1), Table(2)
    drafts = list(itertools.product(range(3), repeat=2))
    q_probs = torch.stack([torch.stack([q(()), q(x[:1])]) for x in drafts])
    p_probs = torch.stack([torch.stack([p(()), p(x[:1]), p(x)]) for x in drafts])
    draft = Draft(torch.tensor(drafts), q_probs, torch.full((9,), 2))
    drawn = torch.stack([q(())[x[0]] * q(x[:1])[x[1]] for x in drafts])
    kept = 0.0
    for verdict, weights in branches(functools.partial(rule(), draft, p_probs)):
        kept += (verdict.num_accepted * weights * drawn).sum()
        acceptance_prob = (verdict.acceptance_prob.sum(1) * drawn).sum()
    assert torch.allclose(kept, acceptance_prob, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (AdaptiveTree, 16)),
        ({"num_draft_tokens": 3}, (Constant, 3)),
        ({"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "adaptive"}, (AdaptiveTree, 3)),
        ({"speculative_config": SpeculativeConfig(tree_top_k=1)}, (Adaptive, 16)),
        ({"num_assistant_tokens_schedule": "heuristic"}, (Heuristic, 5)),
        ({"num_assistant_tokens_schedule": "constant"}, (Constant, 5)),
        ({"speculative_config": SpeculativeConfig(num_draft_tokens=2)}, (Constant, 2)),
        ({"generation_config": GenerationConfig(num_assistant_tokens=7)}, (Constant, 7)),
        ({"generation_config": GenerationConfig()}, (AdaptiveTree, 16)),
        ({"draft_model": None, "prompt_lookup_num_tokens": 6}, (BestNodes, 6)),
    ],
)
def test_a_number_is_constant_and_no_number_is_adaptive(target, draft, settings, expected):
    options = read_options(target, {"draft_model": draft} | settings, None, SpeculativeConfig(), lambda draft, _: draft)
    schedule, (kind, length) = make_schedule(options), expected
    assert type(schedule) is kind
    names = {
        Adaptive: "max_tokens",
        AdaptiveTree: "max_tokens",
        BestNodes: "max_tokens",
        Constant: "num_tokens",
        Heuristic: "start",
    }
    assert getattr(schedule, names[kind]) == length


def times_of_calls(name, alpha, learns, num_tokens=48):
    """Time a token in the later ones of 44 calls, of which each may start from what the one before has learned."""
    learned, times = None, []
    for seed in range(44):
        schedule = Adaptive()
        time, _ = simulate(schedule, COSTS[name], lambda _: alpha, num_tokens, seed, learned if learns else None)
        learned = ConfidenceStop(schedule, 0.1).learned
        times.append(time)
    return times


@pytest.mark.parametrize("name", COSTS)
def test_a_useless_draft_costs_little_in_short_texts(name):
    """At most 4.5 % of 48 plain steps in the first call of a pair, and 1 % in the others."""
    assert sum(times_of_calls(name, 0.0, learns=False)) / 44 < 1.045
    assert sum(times_of_calls(name, 0.0, learns=True)) / 44 < 1.01


def test_what_drafts_have_won_may_be_lost_in_a_later_call():
    """Where they pay on the whole, a text with a bad start is not given up for good."""
    times = {0.0: 0.0, 3.0: 0.0}  # by the credit that an earlier call has left
    for credit, seed in itertools.product(times, range(30)):
        learned = (Adaptive().all_rows, credit)
        time, _ = simulate(Adaptive(), COSTS["a jump"], lambda at: 0.85 * (at > 12), 96, seed, learned)
        times[credit] += time
    assert times[3.0] < 0.95 * times[0.0]
    short = Adaptive(costs=Costs({1: COSTS["even"]}))
    short.begin(batch_at([0], 48), lambda: None)
    assert short.credit < 1, "of its own"
    short.learned = (Adaptive().all_rows, 3.0)
    assert short.credit == 3.0


@pytest.mark.parametrize("name", COSTS)
def test_a_useless_draft_is_tried_in_few_calls(name):
    """For its first try a call reads the prompts, and its rows get out of step."""
    learned, tried = None, []
    for seed in range(44):
        schedule = Adaptive()
        _, lengths = simulate(schedule, COSTS[name], lambda _: 0.0, 48, seed, learned)
        learned = schedule.learned
        tried.append(any(lengths))
    assert 3 <= sum(tried[4:]) <= 16


def test_one_bad_text_among_good_ones_does_not_end_drafting():
    """Nor do many good ones pay for a long row of bad ones."""
    learned, saved = None, []
    for seed in range(30):
        schedule = Adaptive()
        simulate(schedule, COSTS["even"], lambda _, seed=seed: 0.9 if seed < 20 else 0.0, 48, seed, learned)
        learned = schedule.learned
        saved.append(learned[1])
    assert saved[19] == MOST_SAVED and saved[20] > FIRST_CREDIT and saved[-1] < 0
    schedule.learned = learned[0], MOST_SAVED
    assert schedule.credit == FIRST_CREDIT, "what one text may lose"


@pytest.mark.parametrize("kind", [Adaptive, AdaptiveTree])
def test_drafting_is_not_begun_for_less_than_its_start_takes(kind):
    def plan(num_tokens, has_drafted=False):
        schedule = kind(costs=Costs({1: {0: 1.0, 1: 1.65, 8: 9.0}}))
        schedule.begin(batch_at([0], num_tokens), lambda: None)
        schedule.learned = Adaptive().all_rows, 0.0
        getattr(schedule, "chains", schedule).has_drafted = has_drafted
        return schedule.plan(batch_at([1], 1 + num_tokens))

    assert plan(48) == [0] and plan(1000) == [1], "it saves 3 %"
    assert plan(48, has_drafted=True) == [1]


@pytest.mark.parametrize("kind", [Adaptive, AdaptiveTree])
def test_a_decision_not_to_draft_holds_for_some_rounds(kind, monkeypatch):
    """Making it takes a few percent of a small model's pass."""
    num_made, choose = [], Adaptive.choose
    monkeypatch.setattr(Adaptive, "choose", lambda self, gains: num_made.append(1) or choose(self, gains))
    schedule = kind(costs=Costs({1: {0: 1.0, 1: 2.5}}))
    schedule.begin(batch_at([0, 0]), lambda: None)
    for length in range(10 * (1 + RESTS)):
        assert schedule.plan(batch_at([2 + length, 2 + length])) == [0, 0]
    assert len(num_made) == 10
    others = batch_at([5, 5])
    others.rows = [0, 7]
    for batch, expected in ((others, 11), (others, 11), (batch_at([92, 92]), 12)):
        schedule.plan(batch)
        assert len(num_made) == expected, "a row that leaves or comes changes it"


def test_credit_ends_a_rest():
    schedule = Adaptive(costs=Costs({1: COSTS["dear"]}))
    schedule.begin(batch_at([0], 48), lambda: None)
    never = Adaptive().all_rows
    never.kept[0] = 0.0
    schedule.learned = never, -0.5 * CREDIT_A_ROUND
    assert schedule.plan(batch_at([1])) == [0]
    schedule.update(SimpleNamespace(rows=[0], acceptance_prob=[[]]))
    assert schedule.plan(batch_at([2])) == [1]


def test_a_long_call_that_has_won_leaves_something():
    """Whatever its start was taken to cost: rows of equal length, which then differ for 1,000 steps."""
    schedule = Adaptive()
    simulate_batch(schedule, Costs({1: COSTS["even"]}), [0.95] * 4, 1000, seed=0)
    assert schedule.has_drafted and schedule.learned[1] == MOST_SAVED


def test_later_calls_start_from_what_earlier_ones_have_learned():
    cases = [(name, alpha) for name in COSTS for alpha in (0.6, 0.8, 0.9, 0.95)]
    ratios = [sum(times_of_calls(*case, learns=True)) / sum(times_of_calls(*case, learns=False)) for case in cases]
    assert sum(ratios) / len(ratios) < 0.99
