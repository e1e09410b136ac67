"""Trees of guesses: what grows, what is learned from what the target said, and calls against plain decoding."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import hf_speculative as hs
from hf_speculative.call.sources import source_of
from hf_speculative.drafting.mtp import MtpSource
from hf_speculative.drafting.proposers import CorpusSuffix, PromptSuffix, Recycling
from hf_speculative.drafting.suffix.store import SuffixStore
from hf_speculative.drafting.tree_drafter import TreeDrafter
from hf_speculative.schedules import BestNodes, Constant
from hf_speculative.types import Costs
from tests.architectures.check import build
from tests.support import distributions, tiny
from tests.support.cases import slow_but
from tests.support.drafters import Knowing
from tests.support.plain import agrees, takes_lanes

SAMPLER = type("Sampler", (), {"vocab_size": 10})
#: a pass over many columns costs as much as one over one
FREE = Costs(0.0, 1e-8)
DEAR = Costs(0.0, 2.0)


def grown(*proposers, num_nodes=4, may_branch=True, text=(1,), max_depth=6, schedule=None):
    drafter = TreeDrafter(proposers, max_depth)
    drafter.may_branch = may_branch
    batch = hs.Batch(torch.tensor([list(text)]), [0], max_length=len(text) + 21)
    drafter.begin(batch, SAMPLER)
    schedule = schedule or Constant(num_nodes)
    schedule.begin(batch, None)
    return drafter, drafter.propose(batch, [num_nodes], schedule, SAMPLER), batch


FOLLOWING = {1: {2: 0.6, 3: 0.3, 4: 0.05}, 2: {5: 0.7, 12: 0.9}, 3: {6: 0.9}, 5: {7: 0.5}}


@pytest.mark.parametrize(
    ("settings", "tokens", "parents"),
    [
        ({}, [2, 5, 3, 6], [-1, 0, -1, 2]),  # 0.6, 0.42, 0.3, 0.27; 12 is no token of the target's
        ({"num_nodes": 1}, [2], None),
        ({"num_nodes": 2}, [2, 5], None),  # a chain needs no parents
        ({"max_depth": 1}, [2, 3, 4], [-1, -1, -1]),
        ({"may_branch": False}, [2, 5, 7], None),
        ({"text": [8]}, [], None),
    ],
)
def test_the_likeliest_nodes_grow_first(settings, tokens, parents):
    _, draft, _ = grown(Knowing(FOLLOWING), **settings)
    assert draft.tokens.tolist() == [tokens] and draft.probs is None and draft.num_tokens.tolist() == [len(tokens)]
    assert (None if draft.parents is None else draft.parents.tolist()) == (parents and [parents])


def test_chances_are_learned_from_all_that_was_guessed():
    """Also from what was not proposed, so that nothing has to be tried; a row's own share counts for more."""
    drafter, draft, batch = grown(Knowing(FOLLOWING), schedule=BestNodes(8, costs=DEAR))
    assert draft.width == 0 and drafter.chances.of(0, (0.3, None)) == pytest.approx(0.3)
    batch.put(torch.tensor([[3]]))
    batch.append(hs.Draft.empty(batch), hs.Verdict(torch.tensor([0]), torch.tensor([3])))
    drafter.rollback(batch)
    assert drafter.chances.of(0, (0.3, None)) > drafter.chances.of(5, (0.3, None)) > 0.3
    assert drafter.chances.of(0, (0.6, None)) < drafter.chances.of(5, (0.6, None)) < 0.6
    assert drafter.chances.of(0, (0.7, None)) == pytest.approx(0.7), "what came after 2 was not seen"


@torch.no_grad()
def test_recycling_keeps_what_the_target_found_likeliest(target):
    """For each token that it was shown, in the last place where it was; in greedy decoding, the next token is the first one."""
    recycling = Recycling()
    call = {"input_ids": torch.tensor([[5, 9, 3]]), "max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    agrees(target, call, draft_model=TreeDrafter([recycling]), schedule=Constant(6))
    text = target.generate(**call)[0].tolist()
    logits = target(torch.tensor([text])).logits[0]
    last = max(i for i, token in enumerate(text[:-1]) if token == text[2])
    assert recycling.table[text[2]].tolist() == logits[last].topk(8).indices.tolist()
    assert (recycling.table[[token for token in range(tiny.VOCAB) if token not in text]] == -1).all(1).any()


GUESSERS = {
    "recycling": lambda: [Recycling()],
    "own text": lambda: [PromptSuffix()],
    "all": lambda: [Recycling(), PromptSuffix(), CorpusSuffix(SuffixStore())],
}


@pytest.mark.parametrize(
    "mode",
    slow_but(["greedy", "reproducible", "windows", "penalties", "prompts repeated"], "prompts repeated", "windows"),
)
@pytest.mark.parametrize("proposers", GUESSERS)
def test_calls_give_plain_tokens(proposers, mode):
    model = tiny.build("mistral") if mode == "windows" else tiny.llama()
    drafter = TreeDrafter(GUESSERS[proposers]())
    call = tiny.prompts(4, width=14) | {"max_new_tokens": 40, "pad_token_id": 0, "do_sample": False}
    if mode in ("reproducible", "prompts repeated"):
        call |= {"do_sample": True, "temperature": 0.1}
    if mode == "prompts repeated":
        call["num_return_sequences"] = 3
    if mode == "penalties":
        call |= {"repetition_penalty": 1.1, "no_repeat_ngram_size": 6, "eos_token_id": [3, 44]}
    for seed in range(2):
        statistics = agrees(model, call, seed, draft_model=drafter, schedule=BestNodes(12, costs=FREE))
    assert statistics.num_accepted_draft_tokens > 0


def test_rows_that_wait_get_guesses_of_their_own(target):
    drafter = TreeDrafter(GUESSERS["all"]())
    takes_lanes(target, tiny.texts(7, 9, seed=2), draft_model=drafter, schedule=BestNodes(12, costs=FREE))


def test_sampled_text_keeps_its_distribution():
    """Trees, their chances and their number depend on nothing that is still to be drawn: sampled, for what nodes draw that are
    not reached makes too many outcomes to enumerate."""
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    widths, samples = [], []

    class Noting(BestNodes):
        def num_nodes(self, batch, chances):
            widths.append(max(counts := super().num_nodes(batch, chances)))
            return counts

    torch.manual_seed(0)
    drafter = TreeDrafter(GUESSERS["recycling"]())
    draft = {"draft_model": drafter, "speculative_config": hs.SpeculativeConfig(schedule=Noting(6, costs=FREE))}
    settings = {"temperature": 0.8, "top_k": 3}
    with hs.record() as statistics:
        for _ in range(11):
            samples += distributions.continuations(target, draft, [(5, 2, 3, 2)] * 1000, **settings)
    distributions.assert_samples(samples, distributions.exact_distribution(target, (5, 2, 3, 2), **settings))
    assert max(widths) > 1 and statistics.num_accepted_draft_tokens > 1000


@pytest.mark.parametrize("method", ["auto", "recycling", "suffix", ["recycling", "ngram"], "ngram+suffix"])
def test_a_method_needs_no_model(target, method):
    call = tiny.prompts(3, width=12) | {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    assert agrees(target, call, draft_model=method, num_draft_tokens=4).num_accepted_draft_tokens > 0
    expected = target.generate(**call).tolist()
    with hs.patch_transformers(draft_model=method):
        assert target.generate(**call).tolist() == expected
        assert target.generate(**call, draft_model=None).tolist() == expected


def test_mtp_layers_come_first(target, monkeypatch):
    """Where a checkpoint has some, "auto" is them; here one that never fits, then one that does."""
    source = source_of("draft_model", "auto")
    assert source.for_model(target) is source
    monkeypatch.setattr(MtpSource, "check", lambda self, model: None)
    assert isinstance(source.for_model(target), MtpSource)


def test_mtp_layers_that_the_checkpoint_lacks(tmp_path):
    """Of types whose config names some by default: a fine-tune saves none, and is asked for them once."""
    model = build("causal", "glm4_moe")
    model.config.num_mtp_layers = 1  # as the type's config has it
    model.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    agrees(model, tiny.prompts(1) | {"max_new_tokens": 8, "do_sample": False}, draft_model="auto")
    with pytest.raises(ValueError, match="`use_mtp=True`: the MTP layers of the checkpoint cannot be loaded"):
        MtpSource(True).check(model)
    assert not source_of("draft_model", "auto", {"corpus": "x"}).for_model(model).runs_target


@pytest.mark.parametrize("method", ["auto", "recycling", "ngram", ["suffix", "recycling"]])
def test_a_threshold_ends_no_guess_early(target, method):
    with pytest.raises(ValueError, match=r"`assistant_confidence_threshold=0.4` has no effect on drafts by"):
        hs.generate(target, **tiny.prompts(1), draft_model=method, assistant_confidence_threshold=0.4)


def test_models_on_the_universal_path_get_chains():
    model = build("causal", "gpt_neo")
    call = tiny.prompts(2, width=12) | {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    assert agrees(model, call, draft_model="auto", num_draft_tokens=3).num_accepted_draft_tokens > 0


def test_what_is_learned_stays_with_the_model():
    call = tiny.prompts(2, width=12) | {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    one, other, drafts = tiny.llama(), tiny.llama(), {"draft_model": "recycling", "num_draft_tokens": 6}
    passes = [agrees(model, call, **drafts).num_target_forwards for model in (one, one, other)]
    assert passes[1] < passes[0] == passes[2]


def test_a_token_without_a_logit_is_not_recycled():
    """As an image's, whose id comes after the vocabulary."""
    recycling = Recycling()
    recycling.begin(None, 8)
    recycling.observe([8, 3], np.array([[1, 2], [5, 6]]))
    assert recycling.follow(None, 8) is None and recycling.table[3, :2].tolist() == [5, 6]
    assert (recycling.table[[*range(3), *range(4, 8)]] == -1).all()
