"""Trees of draft tokens through whole calls: the output is plain decoding's, whatever part of a call looks at it."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LogitsProcessor

import hf_speculative as hs
from hf_speculative.call import parts
from hf_speculative.models import verified_types
from hf_speculative.verification import TokenVerification
from tests.support import tiny, trees

SETTINGS = {"max_new_tokens": 24, "pad_token_id": 0}


class Counting(LogitsProcessor):
    """Has a memory, and bans what was said two calls ago: it notices a call too many, too few, or with another prefix."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids[:, -1].clone())
        assert len(self.seen) < 2 or (self.seen[-2] == input_ids[:, -2]).all()
        return scores.scatter(1, self.seen[max(0, len(self.seen) - 3)][:, None], -torch.inf)


PROCESSORS = {
    "none": {},
    "prefixes": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "memory": {"logits_processor": Counting},
}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("mode", ["greedy", "reproducible"])
@pytest.mark.parametrize("processors", PROCESSORS)
def test_trees_give_plain_tokens(processors, mode, batch_size):
    model = tiny.llama()
    inputs = tiny.prompts(batch_size)
    settings = SETTINGS | PROCESSORS[processors] | {"do_sample": mode == "reproducible"}

    def fresh(settings):
        own = settings.get("logits_processor")
        return settings if own is None else settings | {"logits_processor": [own()]}

    torch.manual_seed(7)
    plain = model.generate(**inputs, **fresh(settings))
    drafter = trees.KnowingDrafter(without_padding(inputs, plain), tiny.VOCAB)
    options = {"draft_model": drafter, "num_draft_tokens": 9}
    torch.manual_seed(7)
    with hs.record() as statistics:
        found = hs.generate(model, **inputs, **fresh(settings), **options, reproducible=mode == "reproducible")
    assert found.tolist() == plain.tolist() and drafter.num_branching > 0
    assert statistics.mean_acceptance_length > 1.5


def without_padding(inputs, sequences):
    return [row[(1 - mask).sum() :] for row, mask in zip(sequences.tolist(), inputs["attention_mask"], strict=True)]


def test_a_target_whose_trees_no_test_compares_takes_chains(monkeypatch):
    willing = SimpleNamespace(takes_trees=True, branches_with=lambda sampler: True)
    assert parts.may_branch(willing, tiny.llama(), willing, willing, willing)
    monkeypatch.setitem(verified_types.TESTED, "trees", [])
    assert not parts.may_branch(willing, tiny.llama(), willing, willing, willing)


class Fixed(hs.Drafter):
    one_hot_proposals = True
    branches = True

    def __init__(self, parents):
        self.parents = parents

    def propose(self, batch, num_tokens, schedule, sampler):
        parents = torch.tensor([self.parents] * len(batch.rows), dtype=torch.long)
        return hs.Draft(torch.ones_like(parents), None, torch.full((len(parents),), len(self.parents)), parents)


class OfChains(TokenVerification):
    takes_trees = False


def with_fixed_tree(model, parents, **options):
    settings = SETTINGS | {"do_sample": False, "draft_model": Fixed(parents), "num_draft_tokens": 2}
    return hs.generate(model, **tiny.prompts(2), **settings, speculative_config=hs.SpeculativeConfig(**options))


def test_a_tree_without_nodes_is_a_plain_step():
    model = tiny.llama()
    plain = model.generate(**tiny.prompts(2), **SETTINGS, do_sample=False)
    assert with_fixed_tree(model, []).tolist() == plain.tolist()


@pytest.mark.parametrize(
    ("parents", "options", "message"),
    [
        ([-1, -1, 0], {}, "proposed 3 tokens a row where 2 were asked for"),
        ([-1, -1], {"rule": OfChains()}, "proposed a tree where `may_branch` is False"),
    ],
)
def test_a_draft_that_nobody_asked_for_is_refused(parents, options, message):
    with pytest.raises(ValueError, match=message):
        with_fixed_tree(tiny.llama(), parents, **options)
