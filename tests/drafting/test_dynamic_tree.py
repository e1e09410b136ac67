"""A draft model's beams: the tree is EAGLE-2's, the cache right after every round, the output plain decoding's."""

import pytest
import torch
from transformers import LogitsProcessor, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

import hf_speculative as hs
from hf_speculative.drafting import DraftModel, DynamicTreeDrafter
from hf_speculative.drafting.dflash import DFlash
from hf_speculative.drafting.dynamic_tree import Levels
from hf_speculative.models import RaggedModel
from hf_speculative.sampling.samplers import SHARPNESS
from hf_speculative.schedules import ConfidenceStop, Constant
from tests.support import distributions, tied, tiny, trees
from tests.support.cases import a_third, slow_but
from tests.support.compared import compared_model
from tests.support.plain import reproduces_plain, same_as_plain, takes_lanes


@pytest.mark.parametrize("model_type", slow_but(["llama", "mistral", "gemma3_text", "gpt2"], "mistral"))
def test_the_drafts_cache_is_right_after_every_round(model_type):
    """Greedy, unequal rows that end one by one, past a window of 8; sizes that leave expanded nodes out, and the reverse."""
    model = tiny.build(model_type)
    draft = tiny.noisy_copy(model)
    for top_k, num_nodes in ((2, 12), (4, 5)):
        compared = compared_model(draft)
        drafter = DynamicTreeDrafter(compared, top_k, depth=4)
        same_as_plain(model, tiny.prompts(4), draft_model=drafter, num_draft_tokens=num_nodes)
        assert compared.num_levels > 2 * compared.num_steps > 10


def test_rows_that_wait_take_lanes_between_beams():
    model = tiny.llama()
    compared = compared_model(tiny.noisy_copy(model))
    takes_lanes(model, tiny.texts(8, 9), draft_model=DynamicTreeDrafter(compared, top_k=3), num_draft_tokens=8)
    assert compared.num_levels > 10


class Watched(DynamicTreeDrafter):
    num_trees = num_chains = 0

    def propose(self, *args):
        draft = super().propose(*args)
        self.num_trees += draft.tree is not None
        self.num_chains += draft.tree is None
        return draft


@pytest.fixture
def beams(draft):
    return Watched(DraftModel(RaggedModel(draft, clamp_ids=True)), top_k=3)


@pytest.mark.parametrize("processors", ["none", "prefixes"])
def test_the_tree_is_that_of_the_drafts_processed_distributions(target, draft, processors):
    """In each row and round, by fresh passes over each path, processed on their own."""
    settings = PROCESSORS[processors]
    num_trees = 0

    class Written(DynamicTreeDrafter):
        def propose(self, batch, num_tokens, schedule, sampler):
            nonlocal num_trees
            found = super().propose(batch, num_tokens, schedule, sampler)
            for row, (own, pad) in enumerate(zip(batch.history, batch.host_padding, strict=True)):
                before = batch.tokens[row, :pad].tolist()

                def probs(path, own=own, before=before):
                    scores = draft(torch.tensor([[*own, *path]])).logits[:, -1]
                    for processor in applied:
                        scores = processor(torch.tensor([[*before, *own, *path]]), scores)
                    return (SHARPNESS * scores[0]).softmax(-1)

                paths = trees.paths_of(found.tokens[row].tolist(), found.parents[row].tolist())
                room = num_tokens[row]
                assert paths[:room] == list(trees.dynamic_tree(probs, 3, min(4, max(num_tokens)), room))
                num_trees += len(set(found.parents[row].tolist())) < found.width
            return found

    applied = []
    if settings:
        penalty, n = settings["repetition_penalty"], settings["no_repeat_ngram_size"]
        applied = [RepetitionPenaltyLogitsProcessor(penalty), NoRepeatNGramLogitsProcessor(n)]
    config = {"draft_model": Written(DraftModel(RaggedModel(draft)), 3, depth=4), "num_draft_tokens": 7}
    kwargs = tiny.prompts(3) | {"max_new_tokens": 20, "pad_token_id": 0, "do_sample": False}
    hs.generate(target, **kwargs, logits_processor=applied, **config)
    assert num_trees > 20


PROCESSORS = {
    "none": {},
    "prefixes": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "few are left": {"top_k": 2, "temperature": 0.7},
}


@pytest.mark.parametrize("processors", PROCESSORS)
def test_sampling_reproduces_plain(target, beams, processors):
    reproduces_plain(target, (1, 3), PROCESSORS[processors], draft_model=beams, num_draft_tokens=7)
    assert beams.num_trees > 4 and not beams.num_chains


@pytest.mark.slow
@pytest.mark.parametrize("settings", a_third([{"top_k": 3, "repetition_penalty": 1.5}, {"top_k": 3}]), ids=str)
def test_sampled_trees_leave_the_distribution_as_it_is(settings):
    """Where they are asked for; enumerated, through `generate`."""
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    beams = Watched(DraftModel(RaggedModel(tiny.noisy_copy(target, noise=0.4, seed=5))), top_k=2, depth=2)
    config = {"draft_model": beams, "speculative_config": hs.SpeculativeConfig(rule="sampled", num_draft_tokens=3)}
    prompts = ((5, 2, 3, 1), (4, 6, 1, 2))  # penalties of older transformers count padding
    distributions.assert_exact(target, {**config}, prompts, **settings)
    assert beams.num_trees > 3 and not beams.num_chains


@pytest.mark.parametrize("mode", ["greedy", "reproducible"])
def test_a_tree_is_accepted_further_than_a_chain_of_as_many_tokens(target, mode):
    draft, lengths = tiny.noisy_copy(target, noise=0.3), []
    settings = {"max_new_tokens": 40, "pad_token_id": 0, "do_sample": False}
    if mode == "reproducible":
        settings |= {"do_sample": True, "temperature": 0.2, "reproducible": True}
    for drafter in (DraftModel(RaggedModel(draft)), DynamicTreeDrafter(DraftModel(RaggedModel(draft)))):
        torch.manual_seed(0)
        with hs.record() as statistics:
            hs.generate(target, **tiny.prompts(8), **settings, draft_model=drafter, num_draft_tokens=8)
        lengths.append(statistics.mean_acceptance_length)
    assert lengths[1] > 1.1 * lengths[0]


class StatefulProcessor(LogitsProcessor):
    """Has a memory."""

    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores


@pytest.mark.parametrize("why", ["memory", "confidence stop", "draws that are judged by what they were drawn from"])
def test_where_a_tree_does_not_fit_it_is_a_chain(target, beams, why):
    schedule = ConfidenceStop(Constant(4), 0.2) if why == "confidence stop" else Constant(4)
    options = {"logits_processor": [StatefulProcessor()]} if why == "memory" else {}
    config = {"draft_model": beams, "speculative_config": hs.SpeculativeConfig(schedule=schedule)}
    if why.startswith("draws"):
        hs.generate(target, **tiny.prompts(3), do_sample=True, max_new_tokens=24, **config)
    else:
        same_as_plain(target, tiny.prompts(3), **config, **options)
    assert beams.num_chains > 3 and not beams.num_trees


def test_what_drafts_nothing_is_refused(draft):
    with pytest.raises(ValueError, match="`top_k=0` drafts nothing"):
        DynamicTreeDrafter(DraftModel(RaggedModel(draft)), top_k=0)


def test_a_block_known_at_once_has_its_tree():
    """DFlash: all levels of a block come from one pass, whatever is on the way there."""
    model, draft = tied.with_dflash()
    lengths = []
    for drafter in (DFlash(draft, model), Watched(DFlash(draft, model), depth=4)):
        config = {"draft_model": drafter, "num_draft_tokens": 4}
        lengths.append(same_as_plain(model, tiny.prompts(4), **config).mean_acceptance_length)
    reproduces_plain(model, (1, 3), {"repetition_penalty": 1.2}, **config)
    assert drafter.num_trees > 10 and lengths[1] > lengths[0]


def grown(tables, top_k=3, depth=4):
    """Levels whose scores are those of a table of prefixes for each row."""
    levels = Levels(top_k, torch.stack([table(()) for table in tables]).log()[:, None])
    for _ in range(depth - 1):
        width, tokens, tree = levels.expand()
        rows = []
        for table, own, parents in zip(tables, tokens.tolist(), tree.parents.tolist(), strict=True):
            rows.append(torch.stack([table(path) for path in trees.paths_of(own, parents)[-width:]]))
        levels.add(torch.stack(rows).log())
    return levels


def test_parents_come_first_where_all_are_equal():
    """A draft that is certain, one that has no idea, and one that has nothing to say."""
    certain = lambda prefix: torch.eye(5)[len(prefix)]  # noqa: E731
    uniform = lambda prefix: torch.full((5,), 1.0)  # noqa: E731, so that a child is as confident as its parent
    nothing = lambda prefix: torch.zeros(5)  # noqa: E731
    tokens, parents, confidences, _ = grown([certain, uniform, nothing]).best(12)
    assert (parents < torch.arange(12)).all()
    assert tokens[0, :4].tolist() == [0, 1, 2, 3] and parents[0, :4].tolist() == [-1, 0, 1, 2]
    assert (confidences > -torch.inf).sum(1).tolist() == [4, 12, 0]
