"""Chains where they pay more, trees elsewhere: in simulated texts, and through `generate` with costs that are given."""

import itertools
import math
import random

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.drafting import DynamicTreeDrafter, draft_model
from hf_speculative.schedules import Adaptive, BestNodes, Constant
from hf_speculative.types import Batch, Costs, Round
from tests.support import distributions, tied, tiny
from tests.support.plain import reproduces_plain, same_as_plain

pytestmark = pytest.mark.measures
#: of nodes that are nearly free, that cost some and that cost as much as passes
CHEAP, EVEN, DEAR = Costs(0.1, 0.005), Costs(0.1, 0.02), Costs(0.05, 0.15)


def batch_at(position, branches=True, max_length=10_000):
    batch = Batch(torch.ones(1, 1, dtype=torch.long), [0], max_length=max_length)
    batch.host_lengths, batch.is_unread = [position], False
    batch.branches = batch.grows_levels = branches
    return batch


def tree_of(top, others, levels):
    """Paths of a tree with two guesses at each level, the likeliest first, and the chance that each is kept."""
    paths = [path for depth in range(levels) for path in itertools.product("ab", repeat=depth + 1)]
    chances = {path: math.prod(top if guess == "a" else others for guess in path) for path in paths}
    return sorted(chances.items(), key=lambda item: -item[1])


def simulate(schedule, costs, top, others, num_tokens=600, seed=0, branches=True):
    """Time a token, and how many rounds were (none, chains, trees): the draft's best guess is right with the chance `top`, its
    second one, which trees have beside it, with the chance `others`, of position."""
    rng, counts, position, time = random.Random(seed), [0, 0, 0], 1, 0.0
    schedule.begin(batch_at(1), lambda num_rows: costs)
    while position < num_tokens:
        batch, best, second = batch_at(position, branches), top(position), others(position)
        (num,) = schedule.plan(batch)
        levels, proposed = schedule.num_levels(batch), {("a",) * (n + 1) for n in range(num)}
        if levels:
            tree = tree_of(best, second, levels)
            (num,) = schedule.num_nodes(batch, [[chance for _, chance in tree[:num]]])
            proposed = {path for path, _ in tree[:num]}
        draws = (rng.random() for _ in range(levels or num))
        right = ["a" if draw < best else "b" if draw < best + second else "" for draw in draws]
        kept = next((n for n in range(len(right)) if tuple(right[: n + 1]) not in proposed), len(right))
        time += costs.steps(levels or num, num) if num else 1 + costs.draft * levels
        chances = [1.0] * kept + [0.0] * (kept < num and not levels)
        schedule.update(hs.Round([0], [[1] * (kept + 1)], [num], [kept], [False], None, None, [chances]))
        counts[2 if levels else bool(num)] += 1
        position += kept + 1
    return time / position, counts


def always(chance):
    return lambda position: chance


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_where_it_pays_and_a_chain_elsewhere(seed):
    for costs, others, kind in ((CHEAP, 0.25, 2), (EVEN, 0.3, 2), (DEAR, 0.1, 1)):
        time, counts = simulate(Adaptive(), costs, always(0.6), always(others), seed=seed)
        assert counts[kind] > 0.5 * sum(counts)
        chains_alone, _ = simulate(Adaptive(), costs, always(0.6), always(others), seed=seed, branches=False)
        assert time < (0.95 if kind == 2 else 1.1) * chains_alone


def test_what_did_not_pay_is_tried_again():
    """From position 300 on, the branches are right."""
    _, before = simulate(Adaptive(), EVEN, always(0.6), always(0.0), num_tokens=300)
    _, counts = simulate(Adaptive(), EVEN, always(0.6), lambda position: 0.3 * (position >= 300), num_tokens=900)
    later = [n - m for n, m in zip(counts, before, strict=True)]
    assert later[2] > 0.6 * sum(later)


def attached(draft, costs=CHEAP, max_nodes=12, **options):
    schedule = Adaptive(max_nodes=max_nodes, max_levels=4, costs=costs)
    return as_keywords({"draft_model": draft, "schedule": schedule, **options})


@pytest.fixture
def shapes(monkeypatch):
    """How many rounds each draft had: of a chain, of a tree."""
    counts, propose = {"chain": 0, "tree": 0}, DynamicTreeDrafter.propose

    def counted(self, *args):
        draft = propose(self, *args)
        if draft.width:
            counts["chain" if draft.tree is None else "tree"] += 1
        return draft

    monkeypatch.setattr(DynamicTreeDrafter, "propose", counted)
    return counts


@pytest.mark.parametrize("mode", ["greedy", "reproducible", "penalties"])
def test_tokens_are_those_of_plain_decoding(target, draft, shapes, mode):
    if mode == "reproducible":
        reproduces_plain(target, (1, 3), {"top_k": 8}, **attached(draft))
    else:
        settings = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3} if mode == "penalties" else {}
        same_as_plain(target, tiny.prompts(3), settings, **attached(draft))
    assert shapes["tree"] > 3


def test_a_block_of_masks_gives_trees(shapes):
    model, draft = tied.with_dflash()
    same_as_plain(model, tiny.prompts(3), **attached(draft))
    assert shapes["tree"] > 3


def test_sampled_calls_keep_the_chain(target, draft, shapes):
    hs.generate(target, **tiny.prompts(2), do_sample=True, max_new_tokens=24, pad_token_id=0, **attached(draft))
    assert shapes["chain"] > 3 and not shapes["tree"]


def test_sampled_trees_leave_the_distribution_as_it_is(shapes):
    """Where they are asked for: how deep, how many nodes and whether at all follows from the text alone."""
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    draft = tiny.noisy_copy(target, noise=0.4, seed=5)
    call, prompt = attached(draft, Costs(0.0, 0.005), max_nodes=3, rule="sampled"), (5, 2, 3, 2)
    torch.manual_seed(0)
    samples = [one for _ in range(4) for one in distributions.continuations(target, call, [prompt] * 1000, top_k=3)]
    distributions.assert_samples(samples, distributions.exact_distribution(target, prompt, top_k=3))
    assert shapes["tree"] >= 4


def test_a_number_of_nodes_is_a_tree(target, draft, shapes):
    same_as_plain(target, tiny.prompts(3), draft_model=draft, num_draft_tokens=6, tree_top_k=3)
    assert shapes["tree"] > 3 and not shapes["chain"]


def test_a_block_gives_more_nodes_than_it_is_long(shapes):
    model, draft = tied.with_dflash()
    with pytest.raises(ValueError, match="at most 4 tokens"):
        hs.generate(model, **tiny.prompts(1), draft_model=draft, num_draft_tokens=9, max_new_tokens=8)
    same_as_plain(model, tiny.prompts(2), draft_model=draft, num_draft_tokens=9, tree_top_k=4, tree_depth=3)
    assert shapes["tree"] > 3


def test_near_its_end_a_row_keeps_its_siblings(target, draft):
    """One token is left beside the target's own: as many nodes are proposed for it as ever."""
    tree = {"num_draft_tokens": 4, "tree_top_k": 4}
    stats = same_as_plain(target, tiny.prompts(1), {"max_new_tokens": 3}, draft_model=draft, **tree)
    assert stats.num_draft_tokens == 4


def test_what_means_nothing_is_refused(target, draft):
    for options, message in (
        ({"tree_top_k": 0}, "`tree_top_k=0` drafts nothing"),
        ({"tree_top_k": 1, "tree_depth": 3}, "no effect on chains"),
        ({"draft_model": "suffix", "tree_top_k": 2}, "`tree_top_k=2` has no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            hs.generate(target, **tiny.prompts(1), max_new_tokens=4, **as_keywords({"draft_model": draft} | options))


def test_a_draft_that_takes_no_trees_drafts_chains(target, draft, shapes, monkeypatch):

    monkeypatch.setattr(draft_model.models, "fits_trees", lambda model: model is not draft)
    same_as_plain(target, tiny.prompts(2), draft_model=draft, num_draft_tokens=6, tree_top_k=3)
    assert not shapes["tree"]
    assert Constant(1).num_levels(None) is None


@pytest.mark.parametrize("method", [None, "recycling"])
def test_drafts_that_end_early_are_chains(method):
    """However much trees would pay: their plan would be of nodes, and what came of a chain would be taken for a tree's."""
    target = tiny.llama()
    schedule = hs.schedules.ConfidenceStop(Adaptive(4, 12, 2, costs=CHEAP), 1e-4)
    schedule = hs.schedules.HybridSchedule(schedule, 4, costs=CHEAP) if method else schedule
    draft = tiny.noisy_copy(target, noise=0)
    stats = same_as_plain(target, tiny.prompts(2), draft_model=[draft, method] if method else draft, schedule=schedule)
    assert stats.num_accepted_draft_tokens > 20


def test_a_plan_ends_where_a_row_does():
    batch = Batch(torch.ones(3, 8, dtype=torch.long), [0, 0, 0], max_length=12)
    batch.replace_tail([8, 8, 8], [[1], [1, 1], [1, 1, 1]])
    batch.is_unread = False
    assert BestNodes(16).plan(batch) == [2, 1, 0]


def test_a_chain_of_a_draft_model_up_to_the_last_position():
    model = tiny.build("gpt2", n_positions=31)
    options = {"draft_model": tiny.noisy_copy(model), "schedule": BestNodes(16, Costs(0.0, 0.001))}
    same_as_plain(model, tiny.prompts(1), **options)


def test_promises_that_were_not_kept_count_less():
    batch = Batch(torch.ones(1, 8, dtype=torch.long), [0], max_length=99)
    schedule = BestNodes(4, Costs(0.0, 0.2))
    schedule.begin(batch, None)

    def proposed(num_kept):
        (num,) = schedule.num_nodes(batch, [[0.5]])
        if num:
            schedule.update(Round([0], [[1] * (num_kept + 1)], [num], [num_kept], [False], None, None))
        return num

    assert proposed(1) == 1 and [proposed(0) for _ in range(40)][-1] == 0
    schedule.kept = schedule.promised
    assert [proposed(i % 2) for i in range(40)][-1] == 1
