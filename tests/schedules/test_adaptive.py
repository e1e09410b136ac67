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

from hf_speculative import Draft, SpeculativeConfig
from hf_speculative.call.options import read_options
from hf_speculative.call.parts import make_schedule
from hf_speculative.schedules import Adaptive, BestNodes, ConfidenceStop, Constant, Heuristic, RoundCosts, Timed, round_costs
from hf_speculative.schedules.evidence import Evidence
from hf_speculative.schedules.round_costs import EDGES
from hf_speculative.types import Costs
from hf_speculative.verification import BlockVerification, TokenVerification
from tests.support.branching import Table, branches, distance, plain_sequences
from tests.support.cases import slow_but

pytestmark = pytest.mark.measures
#: tokens of the prompt that the first draft of a call reads
PROMPT = 30
#: what rounds cost: little, more where a pass is wider than one column, or in proportion to the draft, or than 4 or 8
COSTS = {
    "cheap": Costs(0.01, 0.02),
    "even": Costs(0.08, 0.07),
    "dear": Costs(0.2, 0.2),
    "jump": Costs(0.05, 0.06, 0.4),
    "stairs": Costs(0.05, 0.05, uneven=(*[0.0] * 4, *[0.5] * 4, 2.0)),
}


def batch_at(done, max_length=10_000, rows=None, refills=False, prompt=0):
    rooms = [max(0, max_length - num - 1) for num in done]
    fixed = {"branches": False, "grows_levels": False, "prompt_width": prompt, "max_length": prompt + max_length}
    of_rows = {"rows": rows or list(range(len(done))), "host_lengths": [prompt + num for num in done], "rooms": rooms}
    return SimpleNamespace(**fixed, **of_rows, is_unread=not any(done), refills=refills)


def finished(rows, acceptance_prob):
    return SimpleNamespace(rows=rows, acceptance_prob=acceptance_prob, num_drafted=[*map(len, acceptance_prob)])


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Which only simulated rounds move."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(round_costs, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def simulate(schedule, true, accepts, num_tokens, seed, clock=None, costs=None, learned=None):
    """Plain steps until all rows have `num_tokens`, and the longest draft of each round.

    Args:
        true: what rounds cost, give or take 5 %; a draft reads the prompts, and what was decoded without it, as well.
        accepts: of each row, the chance that a draft token at a position is kept, or that of any.
        costs: what the schedule knows of them; the truth by default.
        learned: what an earlier call has left.
    """
    rng, done, steps, lengths = random.Random(seed), [0] * len(accepts), 0.0, []
    unread = [PROMPT] * len(accepts)
    schedule.begin(batch_at(done, num_tokens, prompt=PROMPT), costs or (lambda num_rows: true))
    schedule.learned = learned or schedule.learned
    while rows := [row for row, num in enumerate(done) if num < num_tokens]:
        batch, acceptance_prob = batch_at([done[row] for row in rows], num_tokens, rows, prompt=PROMPT), []
        plan = schedule.plan(batch)
        for row, num in zip(rows, plan, strict=True):
            # As tokens of a sampled draft: kept for sure or by a coin, whose chance is known afterwards.
            chances, position = [], done[row]
            for i in range(num):
                chance = accepts[row](position + i) if callable(accepts[row]) else accepts[row]
                chances.append(1.0 if rng.random() < 2 * chance - 1 else rng.random() * min(1.0, 2 * chance))
            acceptance_prob.append([*itertools.accumulate(chances, lambda a, b: a * b)])
            kept = next((i for i, chance in enumerate(chances) if rng.random() >= chance), num)
            done[row], unread[row] = done[row] + 1 + kept, unread[row] + 1
        seconds = rng.gauss(1.0, 0.05) * true.steps(max(plan), max(plan))
        if any(plan):
            seconds += max(unread[row] - 1 for row in rows) * true.draft * true.verify
            unread = [0] * len(unread)
        steps, lengths = steps + seconds, [*lengths, max(plan)]
        if clock:
            clock.seconds += seconds
        schedule.update(finished(rows, acceptance_prob))
    return steps, lengths


def mean(values):
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("num_tokens", slow_but([48, 128, 512], 128))
@pytest.mark.parametrize("name", slow_but([*COSTS], "cheap", "jump"))
def test_close_to_the_best_constant_length(name, num_tokens, num_rows, clock):
    """Over useless to nearly perfect drafts, of a pair whose costs are learned from its own calls."""
    true, regrets = COSTS[name], []
    seeds = [100 * pair + call for pair in range(max(1, 192 // num_tokens)) for call in range(14)]  # short calls vary
    for alpha in (0.01, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        found = {}
        for seed in seeds:
            if seed % 100 == 0:
                learned, costs = None, RoundCosts(1.3 * true.draft, lambda rows: 0.05 * rows)
            schedule = Timed(Adaptive(), costs, int, None)
            found[seed], _ = simulate(schedule, true, [alpha] * num_rows, num_tokens, seed, clock, costs, learned)
            learned = schedule.learned
        late = [seed for seed in seeds if seed % 100 >= 4]
        best = min(
            mean(simulate(Constant(n), true, [alpha] * num_rows, num_tokens, seed)[0] for seed in late)
            for n in (0, 1, 2, 3, 4, 6, 8, 12, 16)
        )
        regrets.append(best / mean(found[seed] for seed in late))
    assert math.prod(regrets) ** (1 / len(regrets)) > 0.955 and min(regrets) > 0.87


@pytest.mark.parametrize("num_tokens", [48, 200])
@pytest.mark.parametrize("costs", [*COSTS.values(), Costs(0.13, 0.5)], ids=[*COSTS, "wide"])
def test_a_useless_draft_costs_little(costs, num_tokens):
    """Half of what it would take to read every token, and 2.5 %."""
    unread = costs.draft * costs.verify
    first = mean(simulate(Adaptive(), costs, [0.01], num_tokens, seed)[0] for seed in range(9))
    assert first < (1.08 + unread / 4) * num_tokens + PROMPT * unread
    learned, later = None, []
    for seed in range(44):
        schedule = Adaptive()
        later.append(simulate(schedule, costs, [0.01], num_tokens, seed, learned=learned)[0])
        learned = ConfidenceStop(schedule, 0.1).learned
    assert mean(later[4:]) < (1.025 + unread / 2) * num_tokens


def test_costs_of_a_busy_machine_are_found_out(clock):
    """A file says that a draft takes ten times what it does: by these costs no try of a short call is worth it."""
    costs, learned, found = RoundCosts(0.1, lambda rows: 0.05), None, []
    sure = (np.diag([0.01, 0.05, 0.01, *[0.0] * len(EDGES)]) ** 2).tolist()
    costs.restore({"fits": {"1": [[0.0, 1.0, 0.05, 0.05, *[0.0] * (len(EDGES) - 1)], sure]}, "settled": {}})
    for seed in range(20):
        schedule = Timed(Adaptive(), costs, int, None)
        steps, lengths = simulate(schedule, Costs(0.1, 0.05), [0.9], 96, seed, clock, costs, learned)
        learned, found = schedule.learned, [*found, (steps, max(lengths))]
    assert found[0][1] == 0 and mean(steps for steps, _ in found[10:]) < 96 / 2


@pytest.mark.parametrize("name", COSTS)
def test_a_text_that_becomes_predictable_is_drafted_again(name):
    for seed in range(5):
        _, lengths = simulate(Adaptive(), COSTS[name], [lambda position: 0.95 * (position > 150)], 500, seed)
        assert max(lengths[:130]) < 8 and min(lengths[-12:-3]) >= 2


def test_a_draft_that_is_always_right_gets_long_unless_it_can_never_pay():
    _, lengths = simulate(Adaptive(), COSTS["even"], [1.0], 400, seed=0)
    assert lengths[1] < 8 and max(lengths) == 16
    _, lengths = simulate(Adaptive(), Costs(0.6, 0.5), [1.0], 100, seed=0)
    assert set(lengths) == {0}


def test_one_length_for_all_rows_within_what_each_can_use():
    schedule = Adaptive(8)
    schedule.begin(batch_at([0, 0]), lambda num_rows: Costs(0.0, 0.05 if num_rows == 1 else 0.3))
    assert schedule.plan(batch_at([0, 0])) == [0, 0], "the prompt's round"
    for _ in range(20):
        schedule.left = []
        schedule.update(finished([0, 1], [[1.0, 1.0], [0.0, 0.0]]))
    schedule.credit = -1.0

    def plan(lengths, **batch):
        return copy.deepcopy(schedule).plan(batch_at(lengths, **batch))

    refilled = plan([5, 5], refills=True)
    assert plan([5, 5]) == [0, 0], "the row that is never right would be done later"
    assert plan([9_000, 5]) == [0, 0]
    assert min(plan([5, 9_000])) >= 1, "the row that is never right has little left"
    (one,) = schedule.plan(batch_at([5]))
    assert refilled[0] == refilled[1] and 1 <= refilled[0] < one == 8, "it shares the cost, not the gain"
    assert plan([5, 5], max_length=7, refills=True) == [1, 1]
    assert plan([5, 6], max_length=7, refills=True) == [1, 0] and plan([6, 6], max_length=7) == [0, 0]


@pytest.mark.parametrize(("window", "most"), [(None, math.inf), (8, 8), (0, 0)])
def test_what_a_draft_has_not_read(window, most):
    """The prompts, and what was decoded without it, by guesses as well; not newcomers, which are read when they come."""
    schedule, found = Adaptive(4, window=window), []
    schedule.begin(batch_at([0, 0], prompt=30), lambda num_rows: Costs(0.5, 0.2))
    for done, drafts in (([0, 0], False), ([1, 1], False), ([2, 6], True), ([4, 8], False), ([20, 30], False)):
        schedule.plan(batch_at(done, prompt=30))
        found.append((schedule.unread_prompt, schedule.unread))
        if schedule.drafts and not drafts:
            continue  # a round of guesses, of which only lengths tell
        schedule.drafts = drafts
        schedule.update(finished([0, 1], [[0.5], [0.5]] if drafts else [[], []]))
    prompt = min(30, most)
    assert found == [(prompt, min(n, most - prompt)) for n in (0, 1, 4)] + [(0, 0), (0, min(19, most))]
    schedule.plan(batch_at([24, 0], rows=[0, 2], prompt=30))
    assert schedule.unread == min(21, most)


def test_chance_in_one_of_many_rows_does_not_end_the_drafts_of_all():
    """One of five draft tokens kept where two of three are: with eight rows, that is nothing to go by."""
    evidence = Evidence(4)
    for i in range(5):
        evidence.add({row: [float((i + row) % 3 > 0)] for row in range(7)} | {7: [float(i == 0)]})
    unlucky, others = evidence.rates(7)[0], [evidence.rates(row)[0] for row in range(7)]
    assert 0.45 < unlucky < min(others) and max(others) < 0.8
    assert evidence.rates(7)[1] < evidence.rates(0)[1], "where nothing was seen, the row's other positions tell"


def test_what_means_nothing_is_refused():
    for costs in ({"draft": -0.1}, {"verify": math.inf}, {"start": math.nan}):
        with pytest.raises(ValueError, match=f"`{next(iter(costs))}=.*0 or more"):
            Costs(**costs)
    for uneven in (-0.6, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"uneven\[1\]=.* is no cost: 2 nodes"):
            Costs(verify=0.25, uneven=(0.0, uneven))
    for name in ("max_tokens", "max_nodes", "max_levels"):
        with pytest.raises(ValueError, match=f"`{name}=0` drafts nothing"):
            Adaptive(**{name: 0})


def timed_rounds(rounds, levels=0, firsts=()):
    """What is learned from rounds of `(passes, drafts)`: passes, nodes and levels of each that counts."""
    seen = []
    # Asked at the beginning of a round and at its end.
    counts = [number for before, is_first in enumerate(firsts) for number in (before, before + is_first)]
    num_first = (lambda: counts.pop(0)) if firsts else int

    plain = list[bool]()

    def see(*round):
        seen.append(round)
        plain.append(around.is_plain)

    fit = SimpleNamespace(see=see, spend=lambda: None)
    known = SimpleNamespace(fit=lambda rows: fit, since_plain=lambda rows: 0 if any(plain) else math.inf)
    around = Timed(Adaptive(4), known, num_first, None)
    around.begin(batch_at([0]), lambda num_rows: Costs(0.0, 0.1))
    around.schedule.num_levels = lambda batch: levels
    for passes, drafted in rounds:
        around.plan(batch_at([3]))
        around.schedule.num_passes = lambda round, passes=passes: passes
        around.update(finished([0], [drafted]))
    return [(passes, nodes, levels) for passes, nodes, _, levels in seen]


def test_which_rounds_are_timed_and_as_what(clock):
    """None that reads prompts or is a tree without nodes; the third of the first ones is a plain round."""
    # The first draft reads the prompts, and one after a round that needed none what that decoded.
    rounds = [(0, [1.0]), (1, [1.0]), (1, []), (1, [1.0]), (0, []), (1, [1.0]), (1, [1.0]), (2, [])]
    assert timed_rounds(rounds) == [(0, 1, 0), (0, 0, 0), (1, 1, 0), (0, 0, 0), (1, 1, 0)]
    # Where guesses promise more, what was planned as a tree takes no pass. The first round reads prompts.
    rounds = [(passes, [1.0]) for passes in (3, 3, 0, 3, 0)]
    assert [(passes, levels) for passes, _, levels in timed_rounds(rounds, levels=3)] == [(3, 3), (0, 0)] * 2


def plain_rounds(num_calls, clock, settles=False, num_tokens=300):
    """How many rounds of each call are plain where drafts pay in all of them."""
    learned, costs, found = None, RoundCosts(0.05, lambda rows: 0.05), []
    for seed in range(num_calls):
        known, sizes = costs.settled() if settles else (costs, None)
        schedule = Timed(Adaptive(), costs, int, sizes)
        _, lengths = simulate(schedule, Costs(0.05, 0.05), [0.9], num_tokens, seed, clock, known, learned)
        found.append(lengths[1:-2].count(0))
    return found


def test_plain_rounds_come_after_many_drafts_not_in_every_call(clock):
    """A call of 40 tokens has some ten rounds: a plain one in each would take 6 % of it."""
    assert 2 <= sum(plain_rounds(20, clock, num_tokens=40)) <= 5
    assert 2 <= sum(plain_rounds(4, clock)) <= 6, "of some 60 rounds each"


def test_a_machine_whose_plain_rounds_tell_nothing_has_few_of_them(clock, monkeypatch):
    """Of which half of the rounds take twice as long, and passes of which none is ever timed."""
    own, rng = Costs.steps, random.Random(0)
    monkeypatch.setattr(Costs, "steps", lambda costs, *n: own(costs, *n) * (1 + rng.randrange(2)))
    assert sum(plain_rounds(20, clock, num_tokens=128)) < 60, "of some 500"
    first = iter(range(10**6))
    schedule = Timed(Adaptive(), RoundCosts(0.05, lambda rows: 0.05), lambda: next(first), None)
    _, lengths = simulate(schedule, Costs(0.05, 0.05), [0.9], 600, 0, clock, lambda num_rows: Costs(0.05, 0.05))
    assert 2 <= lengths[1:-2].count(0) <= 8


def test_costs_that_are_settled_need_no_plain_rounds(clock):
    """Where tokens depend on draft lengths: at the same rounds of each call until then, else not."""
    first, *later = plain_rounds(5, clock, settles=True)
    assert first >= 1 and not any(later)


def test_rounds_with_first_passes_are_not_timed(clock):
    """Those of captured passes; the plain round is tried until it counts."""
    rounds = [(1, [1.0])] * 2 + [(1, [])] * 2 + [(1, [1.0])] * 2
    found = timed_rounds(rounds, firsts=[0, 1, 1, 0, 0, 0])
    assert found == [(0, 0, 0), (1, 1, 0), (1, 1, 0)]


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
        drawn = [math.prod(q(prefix + x[:i])[token].item() for i, token in enumerate(x)) for x in drafts]
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
                after.update(finished([0], [verdict.acceptance_prob[b, : sizes[b]].tolist() if n else []]))
                pending.append((sequence, probability, after, num_rounds + 1))
    return final, lengths


def deciding():
    schedule = Adaptive(2, costs=Costs(0.26, 0.24, 0.1))
    schedule.begin(batch_at([0]), None)
    schedule.credit = -100.0
    return schedule


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
    found, _ = distribution_of(rule(), p, q, deciding(), length=4, peek=lambda x: (*x, 1).index(1))
    assert distance(found, plain_sequences(p, 4)) > 1e-3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (Adaptive, 16)),
        ({"num_draft_tokens": 3}, (Constant, 3)),
        ({"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "adaptive"}, (Adaptive, 3)),
        ({"speculative_config": SpeculativeConfig(tree_top_k=1)}, (Adaptive, 16)),
        ({"num_assistant_tokens_schedule": "heuristic"}, (Heuristic, 5)),
        ({"num_assistant_tokens_schedule": "constant"}, (Constant, 5)),
        ({"speculative_config": SpeculativeConfig(num_draft_tokens=2)}, (Constant, 2)),
        ({"generation_config": GenerationConfig(num_assistant_tokens=7)}, (Constant, 7)),
        ({"generation_config": GenerationConfig()}, (Adaptive, 16)),
        ({"draft_model": None, "prompt_lookup_num_tokens": 6}, (BestNodes, 6)),
    ],
)
def test_a_number_is_constant_and_no_number_is_adaptive(target, draft, settings, expected):
    options = read_options(target, {"draft_model": draft} | settings, None, SpeculativeConfig(), lambda draft, _: draft)
    schedule, (kind, length) = make_schedule(options), expected
    assert type(schedule) is kind and length in vars(schedule).values()


def test_trees_do_not_make_chains_look_dear():
    """Their levels cost more than a chain's passes. The first round of a width costs more than it ever will again."""
    true, costs, rng = Costs(0.2, 0.05, 0.1, 0.8), RoundCosts(0.3, lambda rows: 0.05), random.Random(0)
    known = set()
    for _ in range(200):
        num, levels = rng.choice([(0, 0), (1, 0), (2, 0), (4, 0), (8, 3), (12, 4)])
        seconds = true.steps(levels or num, num, levels) * rng.gauss(1.0, 0.05)
        costs.fit(1).see(levels or num, num, seconds if num in known or not num else 3 * seconds, levels)
        known.add(num)
    found = costs(1)
    assert found.steps(4, 4) == pytest.approx(true.steps(4, 4), rel=0.06)
    assert found.steps(3, 8, 3) == pytest.approx(true.steps(3, 8, 3), rel=0.06)


def test_what_chains_show_holds_for_trees_until_one_was_tried():
    schedule, batch = Adaptive(), batch_at([10])
    schedule.begin(batch, lambda num_rows: Costs(0.1, 0.02))
    before = schedule.trees.rates(0)[0]
    schedule.plan(batch)
    for _ in range(6):
        schedule.update(finished([0], [[0.0, 0.0]]))
    schedule.plan(batch)
    assert schedule.trees.rates(0)[0] < before - 0.05


def test_a_tree_that_is_kept_whole_says_nothing_of_deeper_levels():
    schedule, batch = Adaptive(), batch_at([10])
    schedule.begin(batch, lambda num_rows: Costs(0.1, 0.02))
    schedule.plan(batch)
    schedule.levels, before = 3, schedule.trees.rates(0)
    tree = SimpleNamespace(**vars(finished([0], [[1.0, 1.0, 1.0]])) | {"num_accepted": [3]})
    schedule.update(tree)
    after = schedule.trees.rates(0)
    assert all(new > old for new, old in zip(after, before, strict=True))
