"""A draft model and guesses in one call: who drafts is decided before anything is drawn, and both are used."""

from types import SimpleNamespace

import pytest
import torch

from hf_speculative import SpeculativeConfig
from hf_speculative.call.options import read_options
from hf_speculative.call.sources import source_of
from hf_speculative.drafting import DynamicTreeDrafter
from hf_speculative.drafting.dynamic_tree import MergedTree
from hf_speculative.drafting.tree_drafter import TreeDrafter
from hf_speculative.schedules import Adaptive, Constant, HybridSchedule
from hf_speculative.types import Batch, Costs
from tests.support import distributions, tiny
from tests.support.plain import agrees, reproduces_plain, same_as_plain

pytestmark = pytest.mark.measures
COSTS = Costs(0.1, 0.005)
SETTINGS = {"max_new_tokens": 40, "pad_token_id": 0, "do_sample": False}


@pytest.fixture
def turns(monkeypatch):
    """Rounds in which each of the two drafted; where guesses joined a draft, both did."""
    counts = {"guesses": 0, "drafts": 0}
    for kind, method, name in ((TreeDrafter, "propose", "guesses"), (DynamicTreeDrafter, "propose_beside", "drafts")):
        propose = getattr(kind, method)

        def counted(self, *args, propose=propose, name=name):
            draft = propose(self, *args)
            counts[name] += draft.width > 0
            return draft

        monkeypatch.setattr(kind, method, counted)
    joined = MergedTree.draft

    def counted_joined(self, *args):
        found = joined(self, *args)
        counts["guesses"] += any(map(any, self.chances))
        return found

    monkeypatch.setattr(MergedTree, "draft", counted_joined)
    return counts


def both(draft, costs=COSTS):
    schedule = HybridSchedule(Adaptive(8, 12, 4, costs=costs), 16, costs=costs)
    return {"draft_model": [draft, "auto"], "speculative_config": SpeculativeConfig(schedule=schedule)}


@pytest.mark.parametrize("mode", ["greedy", "reproducible", "copies of a prompt", "a tree by its number"])
def test_tokens_are_those_of_plain_decoding(turns, mode):
    target = tiny.llama()
    draft = tiny.noisy_copy(target, noise=1.0 if mode in ("reproducible", "copies of a prompt") else 0.3)
    if mode == "reproducible":
        reproduces_plain(target, (1, 3), {"temperature": 0.1}, **both(draft))
    elif mode == "copies of a prompt":
        call = tiny.prompts(2) | SETTINGS | {"do_sample": True, "temperature": 0.1, "num_return_sequences": 2}
        agrees(target, call, seed=1, **both(draft))
    elif mode == "greedy":
        same_as_plain(target, tiny.prompts(4, width=12), **both(draft))
    else:
        options = {"draft_model": [draft, "recycling"], "num_draft_tokens": 4, "tree_top_k": 2}
        for _ in range(2):
            same_as_plain(target, tiny.prompts(2), **options)
    assert min(turns.values()) > 0


def test_sampled_text_keeps_its_distribution(turns):
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    options = both(tiny.noisy_copy(target, noise=0.8, seed=5), Costs(0.0, 0.005))
    samples, settings = [], {"temperature": 0.8, "top_k": 3}
    torch.manual_seed(0)
    for _ in range(8):
        samples += distributions.continuations(target, options, [(5, 2, 3, 2)] * 500, **settings)
    distributions.assert_samples(samples, distributions.exact_distribution(target, (5, 2, 3, 2), **settings))
    assert min(turns.values()) > 0


def test_its_rounds_have_costs_of_their_own():
    """A round in which guesses join a draft takes longer than one of the draft alone."""
    draft = tiny.llama()
    alone, joined, others = (source_of("draft_model", value) for value in (draft, (draft, "auto"), (draft, "suffix")))
    assert len({source.cost_key for source in (alone, joined, others)}) == 3


ONE = {"input_ids": tiny.prompts(1)["input_ids"], "do_sample": False}
SEVERAL = {"input_ids": tiny.prompts(3)["input_ids"]}


@pytest.mark.parametrize(
    ("call", "is_joined"),
    [
        ({}, True),
        ({"do_sample": True, "reproducible": True}, True),
        ({"do_sample": True}, False),
        ({"num_draft_tokens": 3}, False),
        ({"speculative_config": SpeculativeConfig(tree_top_k=2)}, False),
        ({"speculative_config": SpeculativeConfig(schedule=Adaptive())}, False),
        ({"num_return_sequences": 2, "do_sample": True, "reproducible": True}, False),
        (SEVERAL, False),
    ],
)
def test_guesses_join_a_draft_for_one_text_by_themselves(call, is_joined):
    target, draft = tiny.llama(), tiny.llama()
    given = ONE | {"draft_model": draft} | call
    options = read_options(target, given, None, SpeculativeConfig(), lambda draft, _: draft)
    guesses = options.source.parts and options.source.parts[0].method
    assert guesses == ("auto" if is_joined else None)


def test_guesses_join_no_draft_on_other_devices():
    """Where it was not measured, and a captured chain of the draft costs little."""
    draft = tiny.llama()
    call = (ONE | {"draft_model": draft}, None, SpeculativeConfig(), lambda draft, _: draft)
    assert read_options(tiny.llama().to("meta"), *call).source.parts is None
    assert read_options(tiny.llama(), *call).source.parts is not None


def test_guesses_come_back_beside_a_good_draft():
    """Where one round of them did not pay, a text that becomes predictable is copied again."""
    batch = Batch(torch.ones(1, 8, dtype=torch.long), [0], max_length=999)
    batch.is_unread = False
    own = Constant(4)
    own.speed = 3.0
    schedule = HybridSchedule(own, costs=Costs(0.1, 0.02))
    schedule.begin(batch, None)

    def guessed(chance):
        (guesses, most), (_, drafts) = schedule.parts(schedule.plan(batch))
        chances = [chance**place for place in range(1, most[0] + 1)]
        num = guesses.num_nodes(batch, [chances])[0] if chances else 0
        round = {"num_drafted": [num or drafts[0]], "num_accepted": [num], "tokens": [[0] * (num + 1)]}
        schedule.update(SimpleNamespace(rows=[0], **round))
        return num

    assert guessed(0.1) == 0
    assert max(guessed(0.99) for _ in range(30)) > 16


def test_trust_in_merged_guesses_recovers():
    tree = MergedTree()
    tree.chances = [[0.9, 0.9]]
    for _ in range(40):
        tree.judge([[]])
    low = tree.kept / tree.promised
    tree.chances = [[]]
    for _ in range(200):
        tree.judge([[]])
    assert low < 0.1 < 0.4 < tree.kept / tree.promised
