"""Guesses in the tree of a draft model: one node where both agree, caches right after every round, the output exact."""

import random

import pytest

from hf_speculative import SpeculativeConfig
from hf_speculative.drafting import DraftModel, DynamicTreeDrafter
from hf_speculative.drafting.dynamic_tree import MergedTree, united
from hf_speculative.drafting.hybrid import HybridDrafter
from hf_speculative.drafting.proposers import PromptSuffix, Recycling
from hf_speculative.drafting.tree_drafter import TreeDrafter
from hf_speculative.models import RaggedModel
from hf_speculative.schedules import Adaptive, Constant, HybridSchedule
from hf_speculative.types import Costs, Nodes
from tests.support import distributions, tiny, trees
from tests.support.cases import a_third, slow_but
from tests.support.compared import compared_model
from tests.support.drafters import Knowing
from tests.support.plain import reproduces_plain, same_as_plain, takes_lanes


def never_alone(schedule):
    both = HybridSchedule(schedule, 16)
    both.guesses.best = lambda chances, passes=0: [0] * len(chances)
    return both


def random_tree(generator):
    nodes = Nodes()
    for _ in range(generator.randint(0, 9)):
        parent, token = generator.randint(-1, len(nodes.tokens) - 1), generator.randint(0, 2)
        chance = (1 if parent < 0 else nodes.chances[parent]) * generator.random()
        if (token, parent) not in zip(nodes.tokens, nodes.parents, strict=True):
            nodes.add(token, parent, chance)
    return nodes


@pytest.mark.parametrize("seed", range(40))
def test_any_number_of_the_likeliest_is_a_tree_without_repetitions(seed):
    generator = random.Random(seed)
    own, guessed = random_tree(generator), random_tree(generator)
    nodes, origins = united(own, guessed, generator.choice([1.0, 0.5]))
    found = trees.paths_of(nodes.tokens, nodes.parents)
    paths = [trees.paths_of(tree.tokens, tree.parents) for tree in (own, guessed)]
    assert set(found) == {*paths[0], *paths[1]} and len(set(found)) == len(found)
    assert nodes.chances == sorted(nodes.chances, reverse=True)
    assert all(parent < i for i, parent in enumerate(nodes.parents))
    assert all(origin is None or paths[0][origin] == path for origin, path in zip(origins, found, strict=True))
    assert {path for origin, path in zip(origins, found, strict=True) if origin is None} == {*paths[1]} - {*paths[0]}


class Watched(DynamicTreeDrafter):
    """Counts nodes that were grafted, and those of them that were kept before a round went on with the draft's cache."""

    num_grafted = num_kept = 0

    def rollback(self, batch):
        if self.is_merged and batch.host_path is not None:
            for row, path in zip(self.merged.chances, batch.host_path, strict=True):
                self.num_grafted += sum(chance > 0 for chance in row)
                self.num_kept += sum(row[node] > 0 for node in path)
        super().rollback(batch)


@pytest.mark.parametrize("top_k, depth", [(3, 4), (2, 1), (1, None)], ids=["tree", "one level", "chain"])
@pytest.mark.parametrize("model_type", slow_but(["llama", "mistral"], "mistral"))
def test_the_drafts_cache_is_right_where_guesses_were_kept(model_type, top_k, depth):
    """Greedy, unequal rows, past a window of 8: each logit of the draft is that of a fresh pass over the text."""
    model = tiny.build(model_type)
    compared = compared_model(tiny.noisy_copy(model, noise=0.5))
    beams = Watched(compared, top_k, depth)
    drafter = HybridDrafter(TreeDrafter([Recycling(), PromptSuffix()]), beams)
    config = {"draft_model": drafter, "speculative_config": SpeculativeConfig(schedule=never_alone(Constant(8)))}
    for _ in range(2):  # the second one knows what the first one wrote
        same_as_plain(model, tiny.prompts(4), **config)
    assert beams.num_grafted > beams.num_kept > 5 and (compared.num_levels > 10 or depth == 1)


@pytest.mark.parametrize("schedule", [Adaptive(6, 12, 4, Costs(0.0, 0.02))], ids=["chains"])
def test_rows_that_wait_and_sampling(schedule):
    target = tiny.llama()
    draft = tiny.noisy_copy(target, noise=0.4)

    def options():
        beams = Watched(compared_model(draft), top_k=3, depth=4 if schedule.num_levels(None) is None else None)
        drafter = HybridDrafter(TreeDrafter([Recycling(), PromptSuffix()]), beams)
        return beams, {"draft_model": drafter, "speculative_config": SpeculativeConfig(schedule=never_alone(schedule))}

    beams, config = options()
    reproduces_plain(target, (1, 3), {"temperature": 0.1, "max_new_tokens": 30}, **config)
    assert beams.num_kept > 0
    beams, config = options()
    takes_lanes(target, tiny.texts(7, 9, seed=2), {"max_new_tokens": 30, "eos_token_id": [7, 20]}, **config)
    assert beams.num_kept > 0


#: after a token its neighbours, the first always likelier than the second
NEIGHBOURS = {token: {(token + n) % distributions.VOCAB: 0.5 / n for n in (1, 2)} for token in range(distributions.VOCAB)}


@pytest.mark.slow
@pytest.mark.parametrize("rule", a_third(["sampled", "token", "block"]))
def test_sampled_text_keeps_its_distribution(rule, monkeypatch):
    """Enumerated, through `generate`; nothing is learned, so that no row depends on others."""
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    monkeypatch.setattr(DynamicTreeDrafter, "branches_with", lambda self, sampler: True)
    monkeypatch.setattr(MergedTree, "judge", lambda self, paths: None)
    beams = DynamicTreeDrafter(DraftModel(RaggedModel(tiny.noisy_copy(target, noise=0.4, seed=5))), top_k=2, depth=2)
    guesses = TreeDrafter([Knowing(NEIGHBOURS)])
    guesses.chances.add = lambda row, kind, is_right: None
    config = SpeculativeConfig(rule=rule, schedule=never_alone(Constant(3)))
    drafts = {"draft_model": HybridDrafter(guesses, beams), "speculative_config": config}
    distributions.assert_exact(target, drafts, ((5, 2, 3, 1),), top_k=3)
