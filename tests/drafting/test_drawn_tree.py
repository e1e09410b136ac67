"""Trees of draws, siblings without replacement: exact through `generate`, caches right, shapes within their number."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.drafting import DraftModel, DrawnTree, drawn_tree
from hf_speculative.models import RaggedModel
from tests.support import distributions, tiny
from tests.support.compared import Compared
from tests.support.plain import reproduces_plain, same_as_plain

PROMPTS = ((5, 2, 3, 1), (4, 6, 1, 2))


def drawing(rule=None, top_k=2, depth=2, num_nodes=4, noise=0.4):
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    drafter = DrawnTree(DraftModel(RaggedModel(tiny.noisy_copy(target, noise=noise, seed=5))), top_k, depth)
    return target, {"speculative_config": SpeculativeConfig(drafter=drafter, rule=rule, num_draft_tokens=num_nodes)}


@pytest.mark.parametrize("rule", ["token", "block", "sampled"])
def test_drawn_trees_leave_the_distribution_as_it_is(rule):
    """Enumerated over all draws and coins."""
    target, options = drawing(rule)
    distributions.assert_exact(target, options, PROMPTS, top_k=3)


def test_more_siblings_than_tokens_leave_the_distribution_as_it_is():
    target, options = drawing(top_k=3, num_nodes=3)
    distributions.assert_exact(target, options, PROMPTS, top_k=2, repetition_penalty=1.5)


def test_control_siblings_judged_as_if_with_replacement_are_caught(monkeypatch):
    def candidates(self, log_probs):
        own, tokens = right(self, log_probs)
        self.probs[-1] = self.sampler.probs(log_probs).repeat_interleave(self.top_k, 1)
        return own, tokens

    right = drawn_tree._DrawnLevels.candidates
    monkeypatch.setattr(drawn_tree._DrawnLevels, "candidates", candidates)
    target, options = drawing("token")
    with pytest.raises(AssertionError, match="too probable"):
        distributions.assert_exact(target, options, PROMPTS, top_k=3)


def test_control_draws_left_out_for_what_they_are_are_caught(monkeypatch):
    """To propose the likeliest of what was drawn is a choice by the draws."""

    def propose(self, *args):
        draft = right(self, *args)
        if draft.tree is None:
            return draft
        best = draft.probs.gather(2, draft.tokens[..., None])[..., 0][:, :2].argmax(1, keepdim=True)
        probs = draft.probs.gather(1, best[..., None].expand(-1, -1, draft.probs.shape[2]))
        return hs.Draft(draft.tokens.gather(1, best), probs, draft.num_tokens.clamp(max=1))

    right = DrawnTree.propose
    monkeypatch.setattr(DrawnTree, "propose", propose)
    target, options = drawing("token")
    with pytest.raises(AssertionError, match="too probable"):
        distributions.assert_exact(target, options, PROMPTS, top_k=3)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt2"])
def test_the_drafts_cache_is_right_after_every_round(model_type):
    model = tiny.build(model_type)
    compared = Compared(tiny.noisy_copy(model))
    config = SpeculativeConfig(drafter=DrawnTree(compared, top_k=2, depth=4), num_draft_tokens=10)
    torch.manual_seed(0)
    hs.generate(model, **tiny.prompts(4), do_sample=True, top_k=8, max_new_tokens=24, speculative_config=config)
    assert compared.num_levels > 2 * compared.num_rounds > 10


def test_it_keeps_more_than_a_chain_of_its_depth(target):
    lengths, draft = [], tiny.noisy_copy(target, noise=0.5)
    chain, of_threes = (DraftModel(RaggedModel(draft)) for _ in range(2))
    for drafter, num in ((chain, 3), (DrawnTree(of_threes, top_k=3, depth=3), 9)):
        torch.manual_seed(0)
        with hs.record() as stats:
            config = SpeculativeConfig(drafter=drafter, num_draft_tokens=num)
            hs.generate(target, **tiny.prompts(8), do_sample=True, max_new_tokens=40, speculative_config=config)
        lengths.append(stats.mean_acceptance_length)
    assert lengths[1] > 1.05 * lengths[0]


def test_without_chance_it_is_a_chain(target, draft):
    config = SpeculativeConfig(drafter=DrawnTree(DraftModel(RaggedModel(draft))), num_draft_tokens=4)
    assert same_as_plain(target, tiny.prompts(3), speculative_config=config).num_accepted_draft_tokens > 0
    reproduces_plain(target, speculative_config=config)


@pytest.mark.parametrize(
    "top_k, depth, num_nodes, widths",
    [
        (2, 5, 2, []),
        (2, 5, 8, [1, 1, 1]),
        (2, 5, 16, [2, 2, 2, 1]),
        (4, 2, 32, [4]),
        (2, 3, 32, [2, 4]),
        (3, 1, 9, []),
    ],
)
def test_levels_share_the_nodes(draft, top_k, depth, num_nodes, widths):
    tree = DrawnTree(DraftModel(RaggedModel(draft)), top_k, depth)
    assert tree.widths(num_nodes, depth) == widths
    assert top_k * (1 + sum(widths)) <= num_nodes


@pytest.mark.parametrize("name", ["top_k", "depth"])
def test_what_drafts_nothing_is_refused(draft, name):
    with pytest.raises(ValueError, match=f"`{name}=0` drafts nothing"):
        DrawnTree(DraftModel(RaggedModel(draft)), **{name: 0})
