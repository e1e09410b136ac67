"""Measuring what rounds cost: in a bounded time, with nothing of the call touched, for every kind of drafter.

The clock is one that only passes of the models move, so that nothing depends on this machine.
"""

import copy
import gc
import threading

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    set_seed,
)

import hf_speculative as hs
from hf_speculative.call import measured_costs as costs
from hf_speculative.call import timings
from hf_speculative.drafting.source import LENGTHS
from hf_speculative.drafting.texts import GuessingSource
from hf_speculative.models import packing
from hf_speculative.schedules import Adaptive, Constant
from hf_speculative.types import Costs
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.lookup import PromptLookup

pytestmark = pytest.mark.measures
SHORT, LONG = ({"max_new_tokens": n, "pad_token_id": 0} for n in (12, 100))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """Nor has a call to save up for it, but where that is tested."""
    monkeypatch.setattr(costs, "_known", type(costs._known)())
    monkeypatch.setattr(costs, "SHARE", 1.0)


def probed(target, draft, batch_size=1, **kwargs) -> float:
    """Seconds that a call took to measure; it ends with its first token, and could have had as many as it asked for."""
    kwargs = LONG | {"do_sample": False, "stopping_criteria": [at_once]} | kwargs
    with hs.record() as stats:
        hs.generate(target, **tiny.prompts(batch_size), draft_model=draft, **kwargs)
    return stats.seconds["probe"]


def at_once(ids, scores):
    return torch.ones(len(ids), dtype=torch.bool)


def known(target) -> dict[int, timings.Timings]:
    """What is known of the only pair and kind of call."""
    ((found,),) = (pairs.values() for pairs in costs._known[target].values())
    return {num_rows: timed for (num_rows, num_levels), timed in found.items() if not num_levels}


def num_kinds(target) -> int:
    return sum(len(pairs) for pairs in costs._known[target].values())


def test_costs_are_of_the_threads_and_the_weights_that_they_were_measured_with(small, monkeypatch):
    probed(*small)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    probed(*small)
    assert num_kinds(small[0]) == 2
    monkeypatch.setattr(packing, "are_packed", lambda model: model is small[1])
    probed(*small)
    assert num_kinds(small[0]) == 3
    probed(*small)
    assert num_kinds(small[0]) == 3


def test_a_machine_that_is_faster_later_does_not_make_drafts_dear(small, machine):
    """What is settled is not timed again, but plain steps are. It was held against the fastest of them, of any time."""
    ours = machine(*small, draft_step=0.12, column=0.02, jump=0.35)
    for _ in range(3):
        probed(*small, max_new_tokens=64)
    ours.step = 0.5
    while probed(*small):
        pass
    found = known(small[0])[1].best()
    assert {n: found[n] / found[0] for n in LENGTHS} == pytest.approx({n: ours.curve[n] for n in LENGTHS})
    assert found[0] == pytest.approx(0.5)


SPEEDS = {
    "as assumed": {"draft_step": 0.1, "column": 0.05},
    "1.1B, bfloat16": {"draft_step": 0.12, "column": 0.02, "jump": 0.35},
    "slow": {"step": 30.0},
    "fast": {"step": 1e-4},
    "a dear draft": {"draft_step": 0.7},
    "a useless draft": {"draft_step": 1.0},
    "fewer weights than time": {"draft_step": 0.02, "column": 0.001},
}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("num_new", slow_but([16, 64, 110], 64))
@pytest.mark.parametrize("speed", SPEEDS)
def test_no_call_measures_for_longer_than_its_share(small, machine, speed, num_new, batch_size):
    ours = machine(*small, **SPEEDS[speed])
    for _ in range(24):
        seconds = probed(*small, batch_size, max_new_tokens=num_new)
        assert seconds <= min(8, 0.1 * num_new) * ours.step * 1.0001
        if seconds == 0:
            break
    assert seconds == 0, "in the end all is known that this budget reaches"


@pytest.mark.parametrize("num_new", slow_but([48, 128, 1000], 128))
@pytest.mark.parametrize("speed", SPEEDS)
def test_calls_together_measure_no_longer_than_their_share(small, machine, monkeypatch, speed, num_new):
    monkeypatch.setattr(costs, "SHARE", 0.02)
    ours = machine(*small, **SPEEDS[speed])
    seconds = []
    for num_calls in range(1, 25):
        seconds.append(probed(*small, max_new_tokens=num_new))
        assert sum(seconds) <= 0.02 * num_calls * num_new * ours.step * 1.0001
    assert any(seconds) and (seconds[0] > 0) == (num_new == 1000), "short calls save up"


def test_rows_that_wait_are_asked_for_as_well(small, machine, monkeypatch):
    """20 prompts in 2 lanes ask for ten times as many plain steps as 2 prompts do."""
    monkeypatch.setattr(costs, "SHARE", 0.02)
    machine(*small)
    prompts = torch.randint(2, tiny.VOCAB, (20, 4)).tolist()
    for num_prompts, is_measured in ((2, False), (20, True)):
        costs._known.clear()
        with hs.record() as stats:
            call = {"batch_size": 2, "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
            next(hs.generate_batches(small[0], prompts[:num_prompts], draft_model=small[1], **call))
        assert (stats.seconds["probe"] > 0) == is_measured


def test_more_rows_are_assumed_to_compute_more(small, monkeypatch):
    """A guess, which costs no pass of a draft, costs a CPU half a plain step where each of 32 rows has one."""
    monkeypatch.setattr(costs, "SHARE", 0.0)
    for num_rows, expected in ((1, costs.ASSUMED_VERIFICATION), (8, 0.2), (32, 0.5)):
        costs._known.clear()
        probed(small[0], "ngram", num_rows)
        (found,) = costs._known[small[0]].values()
        (by_shape,) = found.values()
        assert by_shape[num_rows, 0].best() == pytest.approx({0: 1.0, 1: 1 + expected})


def test_a_machine_that_gets_busy_is_not_measured_on(small, machine):
    """The round in which it happens is the last one, and a plain step keeps its time."""
    for after in range(2, 12):
        costs._known.clear()
        ours = machine(*small)
        ours.get_busy(after, slowness=20)
        assert probed(*small) <= 8 + 19 * max(ours.curve[:9])
        assert known(small[0])[1].plain_step == 1
    ours.slow_from = None
    while probed(*small):
        pass
    assert known(small[0])[1].best() == pytest.approx({n: ours.curve[n] for n in LENGTHS}), "found out later"


def test_what_was_not_measured_is_assumed_and_later_calls_refine(small, machine):
    target, draft = small
    ours = machine(*small, draft_step=0.12, column=0.02, jump=0.35)
    assumed = {0: 1.0, 1: 1 + draft.num_parameters() / target.num_parameters() + costs.ASSUMED_VERIFICATION}
    seen = []
    for num_new in (16, 45, *[100] * 12):
        found = (probed(*small, max_new_tokens=num_new) > 0), known(target)[1]
        seen.append({n for n in LENGTHS if found[1].ratios(n)} if found[0] else found[1].best())
    assert seen[0] == assumed
    assert seen[1:3] == [{0, 1}, {0, 1, 4, 8}], "the most telling first"
    assert seen[-1] == pytest.approx({n: ours.curve[n] for n in LENGTHS}), "times agree: no call measures again"


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_length_chosen_after_one_call_is_a_good_one(small, machine, speed):
    """By the true costs, for a draft of each quality, against the best constant length."""
    ours = machine(*small, **SPEEDS[speed])
    probed(*small, max_new_tokens=64)
    found = Costs({1: known(small[0])[1].best()}).curve(1, 16)
    for alpha in (0.3, 0.6, 0.8, 0.9):
        tokens = [(1 - alpha ** (n + 1)) / (1 - alpha) for n in range(17)]
        chosen = max(range(17), key=lambda n: tokens[n] / found[n])
        best = max(n / time for n, time in zip(tokens, ours.curve, strict=True))
        assert tokens[chosen] / ours.curve[chosen] > 0.85 * best


def test_the_rows_that_are_left_last_are_few(small, machine):
    """One row is timed as well, by a later call."""
    machine(*small)
    probed(*small, 3)
    assert not known(small[0])[1].are_measured
    probed(*small, 3)
    assert {size for size, found in known(small[0]).items() if found.are_measured} == {1, 3}


def test_a_constant_length_measures_nothing(small):
    target, draft = small
    for settings in (
        {"num_draft_tokens": 3},
        {"speculative_config": hs.SpeculativeConfig(schedule=Constant(2))},
        {"speculative_config": hs.SpeculativeConfig(schedule=Adaptive(costs=Costs({1: {0: 1.0, 1: 1.1}})))},
        {"num_assistant_tokens_schedule": "heuristic"},
    ):
        with hs.record() as stats:
            hs.generate(target, **tiny.prompts(1), draft_model=draft, **SHORT, **settings)
        assert target not in costs._known and stats.num_draft_tokens > 0


class CountCalls(LogitsProcessor):
    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores


def test_nothing_of_the_call_is_touched(small, machine):
    """Chance, processors with a memory and configs are as if the costs had been known."""
    target, draft = small
    machine(*small, draft_step=draft.num_parameters() / target.num_parameters(), column=costs.ASSUMED_VERIFICATION)
    configs = copy.deepcopy((target.generation_config, target.config, draft.generation_config, draft.config))
    results = []
    for _ in range(2):
        counter = CountCalls()
        set_seed(3)
        out = hs.generate(
            target,
            **tiny.prompts(2),
            draft_model=draft,
            do_sample=True,
            logits_processor=LogitsProcessorList([counter]),
            **SHORT | {"max_new_tokens": 40},
        )
        results.append((out.tolist(), counter.num_calls, torch.rand(1).item()))
    assert results[0] == results[1], "the same seed gives the same tokens in the call that measures and in the next"
    assert str(configs) == str((target.generation_config, target.config, draft.generation_config, draft.config))


@pytest.mark.parametrize("kind", ["draft_model", "lookup", "early_exit", "own drafter", "bart"])
def test_every_kind_of_drafter(small, kind):
    target, draft = small
    sampling = {"do_sample": True, "reproducible": True}
    inputs, stops = tiny.prompts(2), {"stopping_criteria": [lambda ids, scores: ids.shape[1] >= 30]}
    settings = {
        "draft_model": {"draft_model": draft},
        "lookup": {"prompt_lookup_num_tokens": 6},
        "early_exit": {"assistant_early_exit": 2},
        "own drafter": {"draft_model": PromptLookup(2)},
        "bart": {"draft_model": None},
    }[kind]
    if kind == "bart":
        target = tiny_bart(2)
        settings = {"draft_model": tiny_bart(1)}
    set_seed(5)
    expected = target.generate(**inputs, **LONG, **stops, do_sample=True)
    set_seed(5)
    found = hs.generate(target, **inputs, **settings, **LONG, **stops, **sampling)
    assert found.tolist() == expected.tolist()
    assert known(target)[2].are_measured


def tiny_bart(layers):
    torch.manual_seed(0)
    sides = ("encoder", "decoder")
    config = BartConfig(vocab_size=tiny.VOCAB, d_model=16, max_position_embeddings=128, forced_eos_token_id=None)
    config.update({f"{side}_layers": layers for side in sides} | {f"{side}_attention_heads": 2 for side in sides})
    config.update({"eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 1})
    return BartForConditionalGeneration(config).eval()


def test_a_lookup_that_finds_nothing_has_costs_all_the_same(small, machine):
    target, _ = small
    machine(target)
    prompt = torch.arange(1, 9)[None]
    with tiny.CountForwards(target) as passes:
        for _ in range(3):
            hs.generate(target, input_ids=prompt, prompt_lookup_num_tokens=4, **LONG, stopping_criteria=[at_once])
    lengths = [n for n in GuessingSource.timed_lengths if n <= 4]
    assert all(known(target)[1].ratios(n) for n in lengths)
    assert {width - 1 for _, width in passes.lengths} >= set(lengths), "rounds as wide as real drafts"


def test_without_room_to_measure_costs_are_assumed():
    target, draft = tiny.llama(), tiny.llama(seed=1, layers=1, positions=23)
    assert [probed(target, draft) > 0 for _ in range(2)] == [True, False], "tried once"
    share = draft.num_parameters() / target.num_parameters()
    found = known(target)[1]
    assert not found.can_grow and found.best() == {0: 1.0, 1: 1 + share + costs.ASSUMED_VERIFICATION}


def test_a_long_prompt_that_would_be_read_whole_is_not(machine):
    """Through transformers' own cache only whole prompts can be read: where that takes too long costs are assumed."""
    torch.manual_seed(0)
    target, draft = tiny_bloom(2), tiny_bloom(1)
    machine(target, draft)
    for width, is_measured in ((90, False), (9, True)):
        costs._known.clear()
        hs.generate(target, **tiny.prompts(1, width=width), draft_model=draft, **LONG, stopping_criteria=[at_once])
        assert known(target)[1].are_measured == is_measured


def tiny_bloom(layers):
    config = BloomConfig(**tiny.COMMON, hidden_size=16, n_layer=layers, n_head=2)
    return BloomForCausalLM(config).eval()


def test_threads_measure_one_after_the_other(small, monkeypatch):
    running, seen = [], []
    original = costs.Probe._time

    def noted(*args):
        running.append(1)
        seen.append(len(running))
        original(*args)
        running.pop()

    monkeypatch.setattr(costs.Probe, "_time", noted)
    threads = [threading.Thread(target=probed, args=small) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen and set(seen) == {1}


def test_costs_go_with_the_model():
    target = tiny.llama()
    hs.generate(target, **tiny.prompts(1), draft_model=tiny.llama(seed=1, layers=1), **SHORT)
    assert len(costs._known) == 1
    del target
    gc.collect()
    assert len(costs._known) == 0
