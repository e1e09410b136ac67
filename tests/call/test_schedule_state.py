"""What later calls of a pair start from."""

import sys

import pytest
import torch
from transformers import LogitsProcessor

import hf_speculative as hs
from hf_speculative.call import schedule_state
from hf_speculative.schedules import Adaptive
from hf_speculative.schedules.adaptive import FIRST_SHARE
from tests.support import tiny

KWARGS = {"max_new_tokens": 24, "pad_token_id": 0}


@pytest.fixture
def starts(monkeypatch):
    """The share that each call takes to be accepted before its first round, and its credit."""
    found, start = [], schedule_state.ScheduleState.start

    def spy(self, schedule):
        start(self, schedule)
        inner = getattr(schedule, "schedule", schedule)
        chains = getattr(inner, "chains", inner)
        found.append((chains.all_rows.rate(), chains.credit))

    monkeypatch.setattr(schedule_state.ScheduleState, "start", spy)
    return found


@pytest.fixture
def pair():
    target = tiny.llama()
    return target, tiny.noisy_copy(target, noise=0.05)


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "reproducible": True}])
def test_calls_whose_tokens_do_not_depend_on_it(pair, starts, sampling):
    target, draft = pair
    expected = []
    for _ in range(2):
        torch.manual_seed(0)
        expected.append(hs.generate(target, **tiny.prompts(2), **KWARGS, **sampling, draft_model=draft).tolist())
    assert expected[0] == expected[1]
    assert starts[0] == pytest.approx((0.7, FIRST_SHARE * 24))
    assert starts[1][0] != pytest.approx(0.7)
    hs.generate(target, **tiny.prompts(2), **KWARGS, **sampling, draft_model=tiny.noisy_copy(target))
    assert starts[2] == starts[0], "of another draft nothing is known"


def test_the_same_seed_gives_the_same_tokens(pair, starts):
    target, draft = pair
    for _ in range(2):
        hs.generate(target, **tiny.prompts(2), **KWARGS, do_sample=True, draft_model=draft)
    assert starts[0] == starts[1]


def test_a_schedule_of_the_users_own_starts_over(pair, starts):
    target, draft = pair
    config = hs.SpeculativeConfig(schedule=Adaptive())
    for _ in range(2):
        hs.generate(target, **tiny.prompts(2), **KWARGS, do_sample=False, draft_model=draft, speculative_config=config)
    assert starts[0] == starts[1]


class Locked(LogitsProcessor):
    """Cannot be copied."""

    def __init__(self):
        self.frame = sys._getframe()

    def __call__(self, input_ids, scores):
        return scores


def test_a_call_in_which_nothing_may_be_drafted_teaches_nothing(pair):
    target, draft = pair
    with pytest.warns(UserWarning, match="nothing is drafted in this call"):
        hs.generate(
            target, **tiny.prompts(1), **KWARGS, draft_model=draft, do_sample=False, logits_processor=[Locked()]
        )
    hs.generate(target, **tiny.prompts(1), **KWARGS, draft_model=draft, do_sample=False)
