"""Counts add up; rates are quotients of counts."""

import json
import threading
from types import SimpleNamespace

import pytest

import hf_speculative as hs
from hf_speculative.call import statistics
from hf_speculative.call.statistics import Statistics
from hf_speculative.types import Round
from tests.support import tiny
from tests.support.plain import ours


def rounds():
    """Two rows: the prompt's pass, then 3 drafted: 3 and 1 accepted; then row 1 alone, cut by a stop inside the block."""
    none = {"logits": None, "processed": None}
    return [
        Round([0, 1], [[5], [6]], [0, 0], [0, 0], [False, False], **none),
        Round([0, 1], [[1, 2, 3, 4], [1, 9]], [3, 3], [3, 1], [True, False], **none),
        Round([1], [[7, 8]], [3], [2], [True], **none),
    ]


def test_counts_by_hand():
    stats = Statistics()
    for round in rounds():
        stats.follow(round)
    first, second = stats.rows
    names = ("num_rounds", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    assert [[getattr(row, name) for name in names] for row in (first, second)] == [[2, 1, 3, 3], [3, 2, 6, 2]]
    assert (first.num_new_tokens, second.num_new_tokens, stats.num_new_tokens) == (5, 5, 10)
    assert stats.num_rejections == 1, "a stop is no rejection"
    assert stats.draft_acceptance_rate == 5 / 9 and stats.mean_acceptance_length == 1 + 5 / 3
    assert stats.token_acceptance_rate == 5 / 6
    assert stats.acceptance_histogram == [0, 2, 0, 1] and stats.per_position_acceptance_rate == [1.0, 1 / 3, 1 / 3]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_accepted_plus_rounds_is_new_tokens(target, draft, batch_size, schedule):
    settings = {"max_new_tokens": 30, "eos_token_id": [4, 9], "pad_token_id": 0, "return_dict_in_generate": True}
    drafts = {"draft_model": draft, "num_assistant_tokens_schedule": schedule}
    out = hs.generate(target, **tiny.prompts(batch_size), **settings, **drafts)
    stats = out.statistics
    for row, counts in enumerate(stats.rows):
        new = out.sequences[row, 7:].tolist()
        length = next((i + 1 for i, token in enumerate(new) if token in (4, 9)), 30)
        assert counts.num_accepted_draft_tokens + counts.num_rounds == counts.num_new_tokens == length
        assert sum(counts.acceptance_histogram) == counts.num_spec_steps < counts.num_rounds
    assert stats.num_target_forwards == max(row.num_rounds for row in stats.rows)
    assert stats.num_draft_forwards >= stats.num_target_forwards - 1


@pytest.fixture
def clock(monkeypatch):
    """Stands still unless it is moved: the seconds are its only entry."""
    seconds = [0.0]
    monkeypatch.setattr(statistics, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


def test_time_is_split_by_stage(target, draft, clock):
    def takes(seconds):
        return lambda *args: clock.__setitem__(0, clock[0] + seconds)

    hooks = [model.register_forward_pre_hook(takes(seconds)) for model, seconds in ((target, 5.0), (draft, 1.0))]
    with hs.record() as stats:
        hs.generate(target, **tiny.prompts(2), draft_model=draft, max_new_tokens=20, pad_token_id=0)
    for hook in hooks:
        hook.remove()
    passes = {"verify": 5.0 * stats.num_target_forwards, "draft": 1.0 * stats.num_draft_forwards}
    assert stats.seconds == passes | {"accept": 0, "rest": 0} and passes["draft"] > 0


def test_statistics_come_back_from_json(target, draft):
    with hs.record() as stats:
        hs.generate(target, **tiny.prompts(3), max_new_tokens=12, pad_token_id=0, draft_model=draft, do_sample=False)
    assert stats.num_accepted_draft_tokens and stats.num_rejections
    assert Statistics.from_dict(json.loads(json.dumps(stats.to_dict()))) == stats


def test_statistics_from_a_thread(target, draft):
    """The pattern of TextIteratorStreamer: generate runs in a thread of its own."""
    with hs.record() as stats:
        thread = threading.Thread(target=ours, args=(target, tiny.prompts(1)), kwargs={"draft_model": draft})
        thread.start()
        thread.join()
    assert stats.num_calls == 1
