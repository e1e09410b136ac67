"""Passes compiled ahead of time for draft heads: their own, of EAGLE-3 and P-EAGLE, and the target's, which give states."""

from unittest import mock

import pytest
import torch
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.drafting.eagle3 import Eagle3
from hf_speculative.models import artifacts, pool, replays
from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.sampling.samplers import MOST_FORBIDDEN, Greedy, ProcessedSampler
from hf_speculative.schedules import Constant
from tests.support import heads, tiny
from tests.support.cases import a_third, slow_but
from tests.support.execution import run_as
from tests.support.fake_graphs import Recorded
from tests.support.plain import plain, reproduces_plain, same_as_plain, takes_lanes

KINDS = ("llama", "reduced vocabulary", "sliding windows", "eagle 3.1", "parallel")
CHAIN = {"tree_top_k": 1, "speculative_config": SpeculativeConfig(schedule=Constant(3))}
RECORDED, PROMPT = tuple(heads.FITTED_LAYERS), [3, 7, 11, 5]


@pytest.fixture(scope="module")
def fitted_head():
    return heads.fitted(heads.loud_target(), [PROMPT])


@pytest.fixture
def fitted_pair(fitted_head):
    """A target of its own, and a head that it accepts tokens of if it reads the states that it was fitted to."""
    return heads.loud_target(), fitted_head


def accepts_the_same(target, inputs, **call):
    """Compiled passes draft, and accept, what eager ones do: a draft that differs is accepted otherwise."""
    eager, compiled = (same_as_plain(target, inputs, **call, **more) for more in ({}, {"optimize": True}))
    assert compiled.num_accepted_draft_tokens == eager.num_accepted_draft_tokens > 0
    assert compiled.num_draft_forwards == eager.num_draft_forwards
    return compiled


@pytest.mark.parametrize("name, attention", [*((name, "sdpa") for name in a_third(KINDS)), ("sliding windows", "eager")])
def test_drafts_are_those_of_eager_passes(name, attention, emulated):
    """In rows of unequal length, some of which leave."""
    target, head = heads.made(name, attention)
    call = CHAIN | {"draft_model": head}
    for num_rows in (1, 3):
        compiled = accepts_the_same(target, tiny.prompts(num_rows, width=9), **call)
        assert compiled.num_draft_forwards == emulated.runs_of_heads
        emulated.runs_of_heads = 0
    reproduces_plain(target, (3, 2), **call, optimize=True)
    assert emulated.runs_of_heads and emulated.num_made == 2


def test_rows_that_take_the_place_of_others(emulated):
    target, head = heads.made("llama")
    takes_lanes(target, tiny.texts(5), batch_size=2, draft_model=head, optimize=True, num_draft_tokens=3)
    assert emulated.runs_of_heads


def test_states_are_kept_where_eager_passes_keep_them(fitted_pair, emulated):
    target, head = fitted_pair
    call = CHAIN | {"draft_model": head}
    inputs = {"input_ids": torch.tensor([PROMPT]), "attention_mask": torch.ones(1, len(PROMPT), dtype=torch.long)}
    assert accepts_the_same(target, inputs, **call).num_accepted_draft_tokens > 3 and emulated.runs


def test_the_same_files_for_each_choice_of_states(fitted_pair, emulated):
    """What one kind of call has made, and the hooks it left, are in no other's way."""
    target, head = fitted_pair
    draft = tiny.noisy_copy(target)
    for _ in range(2):
        same_as_plain(target, tiny.prompts(2), draft_model=head)  # eagerly, by transformers' hooks
        same_as_plain(target, tiny.prompts(2), draft_model=head, optimize=True)
        same_as_plain(target, tiny.prompts(2), draft_model=draft, optimize=True)
    assert emulated.num_made == 2, "the target's, which give states between layers to whoever asks, and the head's"
    assert pool.kept(target).artifacts.keys() == {(), RECORDED}


def test_auto_takes_files_that_are_there(fitted_pair, emulated):
    target, head = fitted_pair
    call = {"draft_model": head, "optimize": "auto", "tree_top_k": 1}
    same_as_plain(target, tiny.prompts(2), **call)
    assert not emulated.runs and len(emulated.started) == 1, "the target's; a head's are made by the command alone"
    artifacts.make(head)
    same_as_plain(target, tiny.prompts(2), **call)
    assert emulated.runs_of_heads == len(emulated.runs) > 0, "the target's are not there"
    artifacts.make(target, recorded=RECORDED)
    same_as_plain(target, tiny.prompts(2), **call)
    assert len(emulated.runs) > emulated.runs_of_heads


def test_trees(emulated):
    """Their levels are columns of the head's passes."""
    target, head = heads.made("llama")
    artifacts.make(head)
    compiled = accepts_the_same(target, tiny.prompts(2), draft_model=head, num_draft_tokens=6, tree_top_k=3)
    assert emulated.runs_of_heads == compiled.num_draft_forwards


@pytest.mark.parametrize("name", slow_but(KINDS, "reduced vocabulary"))
def test_captured(name, monkeypatch):
    """Replays of few kinds compute what eager passes do, in chains and trees, rows of unequal length, and later calls."""
    target, head = heads.made(name)
    capture, levels, level = Recorded(), [], Eagle3.level
    monkeypatch.setattr(Eagle3, "level", lambda *args: levels.append(level(*args)) or levels[-1])
    calls = [(num_rows, call) for num_rows in (3, 1) for call in (CHAIN, {"num_draft_tokens": 10, "tree_top_k": 5})]

    def run():
        levels.clear()
        found = [same_as_plain(target, tiny.prompts(rows, width=9), **call, draft_model=head) for rows, call in calls]
        counts = [(stats.num_accepted_draft_tokens, stats.num_draft_forwards) for stats in found]
        assert all(number for number, _ in counts)
        return counts, [*levels]

    counts, eagerly = run()
    monkeypatch.setattr(replays, "NUM_EAGER", 0)
    monkeypatch.setattr("hf_speculative.drafting.eagle3.capture_of", lambda *_: capture)
    for _ in range(2):
        before = capture.num_captures
        found, logits = run()
        assert found == counts
        torch.testing.assert_close(logits, eagerly, atol=1e-4, rtol=1e-4)
    assert capture.num_captures == before < capture.num_replays / 2
    reproduces_plain(target, (3, 2), **CHAIN, draft_model=head)
    takes_lanes(target, tiny.texts(5), batch_size=2, draft_model=head, num_draft_tokens=3)


def test_of_an_attached_pair(emulated, monkeypatch):
    """Whose linear layers multiply by our kernel."""
    target, head = heads.made("llama")
    run_as(monkeypatch, has_kernel=True, compile=True)
    hs.attach(target, head)
    call = {**tiny.prompts(2), "do_sample": False, "pad_token_id": 0, "max_new_tokens": 12}
    expected = target.generate(**call, draft_model=None).tolist()
    assert target.generate(**call, num_draft_tokens=3).tolist() == expected
    assert len(emulated.runs) > emulated.runs_of_heads > 0


class TestGreedyChains:
    """Where nothing is drawn or processed, tokens come from the passes themselves."""

    @pytest.fixture(params=["head of a reduced vocabulary", "draft model"])
    def pair(self, request):
        if request.param == "draft model":
            target = tiny.llama()
            return target, tiny.noisy_copy(target)
        return heads.made("reduced vocabulary")

    CALL = {"num_draft_tokens": 3, "tree_top_k": 1}  # noqa: RUF012

    @pytest.mark.parametrize("num_rows", [1, 3])
    def test_no_scores_are_made(self, pair, num_rows, emulated, monkeypatch):
        target, draft = pair
        call = {"draft_model": draft, **self.CALL}
        accepts_the_same(target, tiny.prompts(num_rows, width=9), **call)
        monkeypatch.setattr(ProcessedSampler, "draft_scores", lambda *args: pytest.fail("scores of a draft"))
        same_as_plain(target, tiny.prompts(num_rows, width=9), **call, optimize=True)

    @pytest.mark.parametrize(
        "inputs, options", [({"repetition_penalty": 1.3}, {}), ({}, {"assistant_confidence_threshold": 0.3})]
    )
    def test_what_reads_scores_gets_them(self, pair, inputs, options, emulated):
        target, draft = pair
        accepts_the_same(target, tiny.prompts(2, width=9) | inputs, draft_model=draft, **self.CALL, **options)

    @pytest.mark.parametrize("name", ["min_new_tokens", "min_length", "suppress_tokens"])
    def test_processors_that_only_forbid(self, pair, name, emulated, monkeypatch):
        """Drafts are not processed as long as they keep to what is allowed."""
        target, draft = pair
        inputs = tiny.prompts(2, width=9)
        text = plain(target, inputs)[:, 9:].flatten().tolist()
        scores = mock.Mock(side_effect=ProcessedSampler.draft_scores)
        monkeypatch.setattr(ProcessedSampler, "draft_scores", lambda *args: scores(*args))
        unused = next(token for token in range(tiny.VOCAB) if token not in text)
        for token in (unused, max(text, key=text.count)):
            options = {name: [token] if name == "suppress_tokens" else 24, "eos_token_id": token}
            stats = same_as_plain(target, inputs | options, draft_model=draft, **self.CALL, optimize=True)
            assert stats.num_accepted_draft_tokens > 0
            assert token != unused or not scores.called

    def test_drafts_that_keep_coming_upon_what_is_forbidden_are_processed(self):
        processors = Processors(LogitsProcessorList([SuppressTokensLogitsProcessor([3, 5])]), 2)
        sampler = Greedy(processors, tiny.VOCAB)
        tokens = torch.tensor([[1, 3, 2], [4, 4, 4]])
        for _ in range(MOST_FORBIDDEN - 1):
            assert sampler.num_allowed(tokens).tolist() == [1, 3]
        assert sampler.num_allowed(tokens[1:]) is None
        for _ in range(MOST_FORBIDDEN):
            assert sampler.proposes_argmax and sampler.num_allowed(tokens) is not None
        assert not sampler.proposes_argmax

    def test_sampled(self, pair, emulated):
        target, draft = pair
        reproduces_plain(target, (2, 2), draft_model=draft, **self.CALL, optimize=True)

    def test_a_wider_vocabulary_than_the_targets(self, emulated):
        target = tiny.llama()
        draft = tiny.noisy_copy(tiny.llama(vocab_size=tiny.VOCAB + 3))
        with torch.no_grad():
            draft.lm_head.weight[tiny.VOCAB :] *= 9  # often the largest
        same_as_plain(target, tiny.prompts(2), draft_model=draft, **self.CALL, optimize=True)
        assert emulated.runs

    def test_embeddings_of_another_type(self, emulated):
        target, head = heads.made("llama")
        accepts_the_same(target, tiny.prompts(2, width=9), draft_model=head.double(), **self.CALL)
        assert emulated.runs_of_heads


@pytest.mark.release
def test_with_the_compiler_itself(folder, monkeypatch):
    """By our kernels."""
    run_as(monkeypatch, has_kernel=True, compile=True)
    target, head = heads.made("llama")
    for num_rows in (1, 3):
        accepts_the_same(target, tiny.prompts(num_rows), **CHAIN, draft_model=head)
    assert artifacts.path_of(head).exists() and pool.kept(head).artifacts and pool.kept(target).artifacts
    hs.attach(target, head)
    same_as_plain(target, tiny.prompts(2), num_draft_tokens=3)
    assert pool.kept(head).artifacts
    hs.detach(target)
