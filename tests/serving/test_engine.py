"""The engine: requests that come at any time, each with its own settings, equal to `generate` on them alone."""

import copy
import gc
import threading
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPTNeoConfig, GPTNeoForCausalLM, LogitsProcessor

from hf_speculative.call.configuration import as_keywords
from hf_speculative.models import ragged_cache
from hf_speculative.models.ragged import RaggedModel
from hf_speculative.models.ragged_cache import RaggedLayer
from hf_speculative.serving.engine import Closed, QueueFull
from hf_speculative.serving.requests import Request
from hf_speculative.serving.rows import Rows, weights_of
from hf_speculative.types import Costs, Draft
from tests.support import tiny
from tests.support.execution import fix_costs
from tests.support.served import PATIENCE, alone, running, submit

SETTINGS = (
    {"max_new_tokens": 12},
    {"max_new_tokens": 9, "do_sample": True, "temperature": 0.8, "top_p": 0.9},
    {"max_new_tokens": 15, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 1},
    {"max_new_tokens": 20, "do_sample": True, "top_k": 5, "eos_token_id": [3, 5, 7]},
    {"max_new_tokens": 30, "eos_token_id": list(range(0, 60, 4))},
    {"max_new_tokens": 8, "do_sample": True, "min_new_tokens": 4, "eos_token_id": [2]},
)
PROMPTS = ([5, 9, 11], [7], [5, 9, 11, 5, 9, 11, 5, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3])
REQUESTS = [(PROMPTS[i % len(PROMPTS)], SETTINGS[i % len(SETTINGS)]) for i in range(21)]


def drafts(name, draft):
    return {
        "chain": {"draft_model": draft, "num_draft_tokens": 3},
        "adaptive": {"draft_model": draft},
        "trees": as_keywords({"draft_model": draft, "num_draft_tokens": 6, "tree_top_k": 3}),
        "guesses first": {"draft_model": [draft, "recycling"]},
        "auto": {"draft_model": "auto"},
        "recycling": {"draft_model": "recycling"},
        "plain": {},
    }[name]


@pytest.mark.parametrize("kind", ["chain", "adaptive", "guesses first", "auto", "recycling", "plain"])
def test_requests_get_what_they_would_get_alone(kind, target, draft):
    with running(target, max_lanes=4, **drafts(kind, draft)) as engine:
        answers = []
        for seed, (prompt, settings) in enumerate(REQUESTS):
            answers.append(submit(engine, prompt, seed, **settings))
            if seed % 5 == 0:  # some come later, while others run
                answers[-1].has_begun.wait(PATIENCE)
        for seed, (answer, (prompt, settings)) in enumerate(zip(answers, REQUESTS, strict=True)):
            assert answer.wait() == alone(target, prompt, seed, **settings)
        counts = engine.statistics
        assert counts.num_new_tokens == sum(len(answer.tokens) for answer in answers)
        assert (counts.num_draft_tokens > 0) == (kind != "plain")
        assert engine.num_prompt_tokens == sum(len(prompt) for prompt, _ in REQUESTS)
        assert sum(engine.ended.values()) == len(REQUESTS) and engine.num_running == engine.num_waiting == 0
        for answer in answers:
            assert answer.request.statistics.num_new_tokens == len(answer.tokens)


def test_what_prompts_share_is_read_once(target, draft):
    """In the lane of a row that is done, and in one of its own."""
    with running(target, max_lanes=2, draft_model=draft, num_draft_tokens=2) as engine:
        start = PROMPTS[-1]
        long = submit(engine, start, max_new_tokens=100)
        long.has_begun.wait(PATIENCE)
        with tiny.CountForwards(target) as forwards:
            others = [submit(engine, [*start, i], max_new_tokens=8) for i in range(3)]
            answers = [answer.wait() for answer in others]
        assert answers == [alone(target, [*start, i], max_new_tokens=8) for i in range(3)]
        assert all(answer.request.num_cached == len(start) for answer in others)
        assert engine.num_cached_tokens == 3 * len(start)
        assert all(columns < len(start) for _, columns in forwards.lengths)
        assert long.wait() == alone(target, start, max_new_tokens=100)


def test_the_next_turn_of_a_conversation_is_read_from_its_last_token_on(target, draft):
    target = copy.deepcopy(target)
    with running(target, draft_model=draft, num_draft_tokens=2) as engine:
        text = PROMPTS[-1]
        for turn in range(3):
            with tiny.CountForwards(target) as forwards:
                answer = submit(engine, text, max_new_tokens=8)
                tokens = answer.wait()
            assert tokens == alone(target, text, max_new_tokens=8)
            # All of the last text but its newest token was read, and what was said since was not.
            assert answer.request.num_cached == (0 if turn == 0 else len(text) - 4)
            assert forwards.lengths[0][1] == (len(text) if turn == 0 else 4)
            text = [*text, *tokens, 4, 5, 6]
        with torch.no_grad():
            target.lm_head.weight.mul_(2)
        answer = submit(engine, text, max_new_tokens=8)
        assert answer.wait() == alone(target, text, max_new_tokens=8) and answer.request.num_cached == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, by what peft asks it
def test_another_adapter_reads_a_conversation_anew(target):
    model = get_peft_model(copy.deepcopy(target), LoraConfig(target_modules=["q_proj"]), "first")
    before = weights_of(model)
    assert weights_of(model) == before
    with model.disable_adapter():
        assert weights_of(model) != before
    model.add_adapter("second", LoraConfig(target_modules=["q_proj"]))
    with_second = weights_of(model)
    model.set_adapter("second")
    assert weights_of(model) != with_second


def test_a_cancelled_request_gives_its_lane_back(target):
    with running(target, max_lanes=1) as engine:
        first, second = submit(engine, [5], max_new_tokens=120), submit(engine, [9], max_new_tokens=3)
        waiting = submit(engine, [7], max_new_tokens=3)
        waiting.request.cancel()
        first.has_begun.wait(PATIENCE)
        first.request.cancel()
        assert second.wait() == alone(target, [9], max_new_tokens=3)
        assert len(first.wait()) < 120 and waiting.wait() == []
        assert engine.ended["abort"] == 2


def test_no_processor_is_asked_beyond_an_end(target):
    """A draft may go on behind an end token, of which such a function knows nothing."""
    known = alone(target, [5], max_new_tokens=12)
    end = known.index(known[6])
    trie = {(5, *known[:n]): known[n] for n in range(end + 1)}
    settings = {"max_new_tokens": 12, "eos_token_id": known[6]}
    with running(target, draft_model=copy.deepcopy(target), num_draft_tokens=4) as engine:
        answer = submit(engine, [5], prefix_allowed_tokens_fn=lambda _, ids: [trie[tuple(ids.tolist())]], **settings)
        assert answer.wait() == known[: end + 1]


def test_a_draft_has_room_up_to_its_requests_own_maximum(target):
    """Padding takes none of it."""
    sizes = {0: (40, 64), 1: (2, 64), 2: (2, 10), 3: (9, 10)}
    requests = {row: Mock(ids=[5] * size, max_length=most) for row, (size, most) in sizes.items()}
    for request in requests.values():
        request.inputs.input_ids.device = torch.device("cpu")
    assert Rows(requests, requests, 64, 0, Mock(), Mock()).rooms == [23, 61, 7, 0]


class Remembers(LogitsProcessor):
    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores.index_fill(1, torch.tensor([7 * self.num_calls % scores.shape[1]]), -torch.inf)


class TakesBack(Remembers):
    """A processor that is never copied, and so sees no trees."""

    def rollback(self, num_calls):
        self.num_calls -= num_calls


@pytest.mark.measures
@pytest.mark.parametrize("kind", ["trees", "adaptive", "guesses first", "recycling"])
def test_drafts_are_trees_where_all_that_run_take_them(kind, target, draft, monkeypatch):
    """A request with a memory runs beside others, which then get chains: first without it, then with it."""
    target = copy.deepcopy(target)  # of which nothing was learned by other tests
    fix_costs(monkeypatch, Costs(0.05, 0.005))
    original, num_trees = Draft.tree_for, []
    monkeypatch.setattr(Draft, "tree_for", lambda *args: num_trees.append(original(*args)) or num_trees[-1])
    settings = {"max_new_tokens": 40, "seed": 1}
    with running(target, max_lanes=4, **drafts(kind, draft)) as engine:
        answers = [submit(engine, [5, i], **settings) for i in (9, 7)]
        assert [answer.wait() for answer in answers] == [alone(target, [5, i], **settings) for i in (9, 7)]
        assert any(tree is not None for tree in num_trees)
        answers = [submit(engine, [5, i], **settings, logits_processor=[own()]) for i, own in WITH_MEMORY]
        other = submit(engine, [5, 9], **settings)
        for (i, own), answer in zip(WITH_MEMORY, answers, strict=True):
            assert answer.wait() == alone(target, [5, i], **settings, logits_processor=[own()])
        assert other.wait() == alone(target, [5, 9], **settings)


WITH_MEMORY = [(9, Remembers), (7, TakesBack), (3, Remembers)]


class Fails(LogitsProcessor):
    def __init__(self, after):
        self.after = after

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self.after:
            raise RuntimeError("no more")
        return scores


def test_a_processor_that_fails_ends_its_request_alone(target, draft):
    with running(target, draft_model=draft, num_draft_tokens=3) as engine:
        good = submit(engine, [5, 9], seed=3, max_new_tokens=30, do_sample=True)
        bad = submit(engine, [5, 9], max_new_tokens=30, logits_processor=[Fails(10)])
        with pytest.raises(RuntimeError, match="no more"):
            bad.wait()
        assert bad.tokens == alone(target, [5, 9], max_new_tokens=30)[: len(bad.tokens)]
        assert good.wait() == alone(target, [5, 9], seed=3, max_new_tokens=30, do_sample=True)


def test_whoever_cannot_take_tokens_ends_alone(target):
    def receive(tokens):
        raise BrokenPipeError("gone")

    with running(target) as engine:
        error, is_done = [], threading.Event()
        engine.submit([5], receive, lambda e: (error.append(e), is_done.set()), max_new_tokens=50)
        good = submit(engine, [9], max_new_tokens=50)
        assert is_done.wait(PATIENCE) and isinstance(error[0], BrokenPipeError)
        assert good.wait() == alone(target, [9], max_new_tokens=50)


def test_a_pass_that_fails_ends_those_that_run_and_no_others(target):
    def fail(module, args, kwargs):
        raise torch.OutOfMemoryError("none left")

    with running(target, max_lanes=1) as engine:
        with target.register_forward_pre_hook(fail, with_kwargs=True), pytest.raises(torch.OutOfMemoryError):
            submit(engine, [5], max_new_tokens=3).wait()
        assert submit(engine, [9], max_new_tokens=3).wait() == alone(target, [9], max_new_tokens=3)


def test_a_cache_that_ran_out_of_memory_while_it_grew_is_not_used_again(target, monkeypatch):
    monkeypatch.setattr(ragged_cache, "MAX_AHEAD", 4)
    grown, grow = [], RaggedLayer.grow

    def fail(layer):
        grown.extend([layer] * layer.is_initialized)
        if len(grown) == 2:
            raise torch.OutOfMemoryError("none left")
        grow(layer)

    with running(copy.deepcopy(target)) as engine:
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(RaggedLayer, "grow", fail)
            submit(engine, [5], max_new_tokens=40).wait()
        assert len(grown) == 2
        for prompt in ([9], [5] * 20):
            assert submit(engine, prompt, max_new_tokens=9).wait() == alone(target, prompt, max_new_tokens=9)


def test_rows_that_are_read_alone_share_nothing(target, monkeypatch):
    """As under `reproducible="bitwise"` with our kernels: what is told as cached was not read again."""
    monkeypatch.setattr(RaggedModel, "reads_alone", True)
    with running(target, max_lanes=2) as engine:
        answers = [submit(engine, [*PROMPTS[-1], i], max_new_tokens=8) for i in range(3)]
        for i, answer in enumerate(answers):
            assert answer.wait() == alone(target, [*PROMPTS[-1], i], max_new_tokens=8)
        assert engine.num_cached_tokens == 0


def test_refused_before_it_waits(target):
    with running(target, max_length=32) as engine:
        for prompt, settings, words in (
            ([5], {"max_new_tokens": 32}, "more than the 32 that fit"),
            ([10**6], {}, "1000000"),
            ([5], {"max_new_tokens": -1}, "max_new_tokens"),
            ([5], {"num_beams": 2}, "num_beams"),
            ([5], {"guidance_scale": 2.0}, "guidance_scale"),
            ([5], {"do_sample": True, "temperature": -1.0}, "temperature"),
        ):
            with pytest.raises(ValueError, match=words):
                submit(engine, prompt, **{"max_new_tokens": 3} | settings)
        assert engine.num_waiting == 0


def test_a_full_queue_and_a_closed_one(target):
    with running(target, max_lanes=1, max_waiting=1) as engine:
        first = submit(engine, [5], max_new_tokens=100)
        first.has_begun.wait(PATIENCE)
        second = submit(engine, [9], max_new_tokens=5)
        with pytest.raises(QueueFull, match="1 requests wait already"):
            submit(engine, [7], max_new_tokens=5)
        engine.close()  # those that are there end as they would
        assert len(first.wait()) == 100 and len(second.wait()) == 5 and not engine.is_alive
        with pytest.raises(Closed):
            submit(engine, [7], max_new_tokens=5)


def test_what_is_over_is_forgotten(target, draft, monkeypatch):
    """A server's call has no end: nothing may grow with the number of requests."""
    with running(target, max_lanes=2, draft_model=draft) as engine:
        long = submit(engine, [5], max_new_tokens=110)
        long.has_begun.wait(PATIENCE)
        alive = []
        monkeypatch.setattr(Request, "__del__", lambda request: alive.append(1), raising=False)
        for i in range(8):
            submit(engine, [7 + i], max_new_tokens=2).wait()
        gc.collect()
        assert len(alive) >= 6
        long.wait()


def test_what_no_request_could_use_is_refused_at_once(target):
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    neo = GPTNeoForCausalLM(GPTNeoConfig(**tiny.COMMON, **sizes)).eval()
    refused = {name: {name: -1} for name in ("max_lanes", "max_waiting", "max_length")}
    refused["requests come and go, and GPTNeoForCausalLM"] = {"draft_model": neo}
    for words, settings in refused.items():
        with pytest.raises(ValueError, match=words), running(target, **settings):
            pass
