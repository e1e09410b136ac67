"""Trees of draws, siblings without replacement: exact through `generate`, caches right, shapes within their number."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.drafting import DraftModel, DrawnTree
from hf_speculative.drafting.drawn_tree import shape
from hf_speculative.models import RaggedModel
from tests.support import distributions, tiny
from tests.support.compared import compared_model
from tests.support.plain import reproduces_plain, same_as_plain

PROMPTS = ((5, 2, 3, 1), (4, 6, 1, 2))


def drawing(rule=None, rates=(0.5, 0.4), depth=2, num_nodes=4, noise=0.4):
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    drafter = DrawnTree(DraftModel(RaggedModel(tiny.noisy_copy(target, noise=noise, seed=5))), rates, depth)
    return target, {
        "draft_model": drafter,
        "speculative_config": SpeculativeConfig(rule=rule, num_draft_tokens=num_nodes),
    }


@pytest.mark.parametrize(
    "rule, top_k, num_nodes, depth",
    [("token", 3, 2, 1), ("block", 2, 3, 2), ("token", 2, 3, 1)],
    ids=["siblings", "a path", "more siblings than tokens"],
)
def test_drawn_trees_leave_the_distribution_as_it_is(rule, top_k, num_nodes, depth):
    """Enumerated over all draws and coins; also where there are more siblings than tokens to draw."""
    rates = (0.5, 0.4) if depth == 2 else (0.5, 0.5, 0.5)
    target, options = drawing(rule, rates, depth, num_nodes)
    distributions.assert_exact(target, options, PROMPTS, top_k=top_k)


def test_control_siblings_judged_as_if_with_replacement_are_caught(monkeypatch):
    def siblings(self, q, *args):
        tokens, probs = right(self, q, *args)
        return tokens, q[:, :, None].expand_as(probs)

    right = DrawnTree._siblings
    monkeypatch.setattr(DrawnTree, "_siblings", siblings)
    target, options = drawing("token", depth=1, num_nodes=2)
    with pytest.raises(AssertionError, match="too probable"):
        distributions.assert_exact(target, options, PROMPTS[:1], top_k=3)


def test_control_draws_left_out_for_what_they_are_are_caught(monkeypatch):
    """To propose the likeliest of what was drawn is a choice by the draws."""

    def propose(self, *args):
        draft = right(self, *args)
        if draft.tree is None:
            return draft
        best = draft.probs[:, 0].gather(1, draft.tokens).argmax(1, keepdim=True)
        probs = draft.probs.gather(1, best[..., None].expand(-1, -1, draft.probs.shape[2]))
        return hs.Draft(draft.tokens.gather(1, best), probs, draft.num_tokens.clamp(max=1))

    right = DrawnTree.propose
    monkeypatch.setattr(DrawnTree, "propose", propose)
    target, options = drawing("token", depth=1, num_nodes=2)
    with pytest.raises(AssertionError, match="too probable"):
        distributions.assert_exact(target, options, PROMPTS[:1], top_k=3)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_the_drafts_cache_is_right_after_every_round(model_type):
    model = tiny.build(model_type)
    compared = compared_model(tiny.noisy_copy(model))
    config = {
        "draft_model": DrawnTree(compared, (0.5, 0.4), depth=4),
        "speculative_config": SpeculativeConfig(num_draft_tokens=10),
    }
    torch.manual_seed(0)
    hs.generate(model, **tiny.prompts(4), do_sample=True, top_k=8, max_new_tokens=24, **config)
    assert compared.num_levels >= 2 * compared.num_steps > 10


def test_it_keeps_more_than_a_chain_of_its_depth(target):
    lengths, draft = [], tiny.noisy_copy(target, noise=2.0)
    chain, of_threes = (DraftModel(RaggedModel(draft)) for _ in range(2))
    for drafter, num in ((chain, 3), (DrawnTree(of_threes, (0.5, 0.3, 0.2), depth=3), 15)):
        torch.manual_seed(0)
        with hs.record() as stats:
            config = {"draft_model": drafter, "speculative_config": SpeculativeConfig(num_draft_tokens=num)}
            hs.generate(target, **tiny.prompts(8), do_sample=True, max_new_tokens=40, **config)
        lengths.append(stats.mean_acceptance_length)
    assert lengths[1] > 1.05 * lengths[0]


def test_without_chance_it_is_a_chain(target, draft):
    config = {
        "draft_model": DrawnTree(DraftModel(RaggedModel(draft))),
        "speculative_config": SpeculativeConfig(num_draft_tokens=4),
    }
    assert same_as_plain(target, tiny.prompts(3), **config).num_accepted_draft_tokens > 0
    reproduces_plain(target, **config)


def test_the_shape_is_that_of_the_nodes_likeliest_to_be_kept():
    assert shape((0.5, 0.4), 4, 2) == [[(-1, 0), (-1, 1)], [(0, 0), (0, 1)]]
    assert shape((0.9,), 3, 8) == [[(-1, 0)], [(0, 0)], [(1, 0)]]
    assert shape((0.8, 0.1), 5, 2) == [[(-1, 0), (-1, 1)], [(0, 0), (0, 1), (1, 0)]]
    assert shape((0.8, 0.1, 0.05), 3, 1) == [[(-1, 0), (-1, 1), (-1, 2)]]


@pytest.mark.parametrize("name, value", [("rates", ()), ("rates", (0.5, 0.0)), ("depth", 0)])
def test_what_drafts_nothing_is_refused(draft, name, value):
    with pytest.raises(ValueError, match=f"`{name}="):
        DrawnTree(DraftModel(RaggedModel(draft)), **{name: value})
