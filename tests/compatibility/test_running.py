"""Trials on models: which sources are tried, for how long, and that nothing else changes."""

import itertools

import pytest
import torch

from hf_speculative.call.sources import source_of
from hf_speculative.compatibility import running
from hf_speculative.compatibility.running import Candidate, Limits, candidates, run_trials
from hf_speculative.models.model_state import kept_with
from tests.architectures.check import build
from tests.support import tied

PROMPTS = [[5, 6, 7, 8], [9, 8, 7], [3, 4]]


def given(draft, name="draft"):
    return Candidate(source_of("draft_model", draft), {"draft_model": name}, {"draft_model": draft})


def tried(target, draft=None, seconds=1e9, prompts=PROMPTS, **more):
    chosen = [given(draft)] if draft is not None else list(candidates(target))
    return run_trials(target, None, chosen, prompts, Limits(seconds, 24, **more))


def test_which_sources_are_tried_on_a_target(target, tmp_path):
    assert [one.label for one in candidates(target)] == ["early_exit at layer 1", "ngram", "auto"]
    assert [one.label for one in candidates(build("causal", "bloom"))] == ["ngram", "auto"], "no layers of its own"
    with_mtp = tied.with_mtp(tmp_path)
    assert [one.label for one in candidates(with_mtp)] == ["early_exit at layer 1", "ngram", "mtp"], "auto is mtp there"


def test_a_draft_that_is_always_right_and_one_that_never_is(target, twin, unrelated):
    greedy, sampled = tried(target, twin)
    assert greedy.acceptance == sampled.acceptance == [1.0] * running.NUM_DRAFT_TOKENS
    assert greedy.num_tokens == 3 * 23 and len(greedy.texts) == 3, "the first token is the prompt's own pass"
    assert greedy.draft_length == running.NUM_DRAFT_TOKENS and greedy.speedup.is_gain
    assert greedy.cost_of_token >= 0
    greedy, _ = tried(target, unrelated)
    assert greedy.acceptance[0] < 0.3 and not greedy.speedup.is_gain


def test_every_source_on_the_same_texts(target):
    found = tried(target)
    assert {(one.source, one.decoding) for one in found} == {
        (source, decoding)
        for source in ("early_exit at layer 1", "ngram", "auto")
        for decoding in ("greedy", "sampled")
    }
    assert {one.num_tokens for one in found} == {3 * 23} and not [one for one in found if one.failure]


def test_universal_targets_are_tried_as_well():
    model = build("causal", "bloom")
    assert {one.source for one in tried(model) if one.num_tokens} == {"ngram", "auto"}


def test_time_is_bounded_and_shared(target, twin):
    """A clock that goes on by a second each time it is looked at."""

    def by_clock(seconds):
        return tried(target, twin, seconds, prompts=PROMPTS * 3, clock=itertools.count().__next__)

    greedy, sampled = by_clock(8)
    assert 0 < greedy.num_tokens < 23 and 0 < sampled.num_tokens < 23, "each has some of the first text"
    assert len(by_clock(30)[0].texts) in range(1, 5)


def test_texts_side_by_side(target, twin):
    """A batch is of the prompts that are next, the last one filled up from the first; each row is a text of its own."""
    alone, together = (
        run_trials(target, None, [given(twin)], PROMPTS, Limits(1e9, 24, sizes), decodings=["greedy"])
        for sizes in ((1,), (2,))
    )
    assert [one.batch_size for one in (*alone, *together)] == [1, 2]
    texts = together[0].texts
    assert len(texts) == 4 and together[0].num_tokens == 4 * 23
    assert [sum(1 + kept for _, kept, _ in text) for text in texts] == [23] * 4
    assert texts[3] == texts[0], "the first prompt again"
    assert all(beside >= drafted for text in texts for drafted, _, beside in text)


def test_each_size_has_a_plain_step_of_its_own(target, twin):
    found = run_trials(target, None, [given(twin)], PROMPTS[:1], Limits(1e9, 4, (1, 8)), decodings=["greedy"])
    timed = [
        running.replace(one, times=(size, 9.0), is_timed=True) for one, size in zip(found, (1.0, 8.0), strict=True)
    ]
    assert [one.times[0] for one in running.with_one_plain_step(timed)] == [1.0, 8.0]


def test_what_cannot_run_says_why_and_the_others_go_on(target, twin, monkeypatch):
    calls = running.generate_rounds

    def broken(model, **kwargs):
        if kwargs["do_sample"]:
            raise RuntimeError("out of memory")
        return calls(model, **kwargs)

    monkeypatch.setattr(running, "generate_rounds", broken)
    greedy, sampled = tried(target, twin)
    assert greedy.speedup is not None and greedy.failure is None
    assert sampled.failure == "out of memory" and sampled.speedup is None


def test_nothing_is_left_behind(target):
    state, kept = torch.get_rng_state(), dict(kept_with(target))
    config = target.generation_config.to_dict()
    tried(target)
    assert torch.equal(torch.get_rng_state(), state) and kept_with(target) == kept
    assert target.generation_config.to_dict() == config


def test_the_fastest_plain_step_is_the_one_to_beat(target, twin):
    greedy, sampled = tried(target, twin)
    slow = running.replace(greedy, times=(3.0, 4.0), is_timed=True)
    fast = running.replace(greedy, times=(2.0, 4.0), is_timed=True)
    found = running.with_one_plain_step([slow, fast, sampled])
    assert [one.times[:2] for one in found[:2]] == [(2.0, 4.0)] * 2 and found[2] == sampled


@pytest.mark.measures
def test_costs_are_those_of_the_clock(target, twin):
    greedy, _ = run_trials(target, None, [given(twin)], PROMPTS[:1], Limits(1e9, num_new_tokens=80))
    assert greedy.is_timed and greedy.times[0] < 1 and greedy.times == tuple(sorted(greedy.times))
