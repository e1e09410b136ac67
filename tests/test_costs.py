"""Measuring what rounds cost: once a pair, with nothing of the call touched, for every kind of drafter."""

import copy
import gc
import itertools
import threading
from types import SimpleNamespace

import pytest
import tiny
import torch
from transformers import BartConfig, BartForConditionalGeneration, LogitsProcessor, LogitsProcessorList, set_seed

import hf_speculative as hs
from hf_speculative import costs
from hf_speculative.drafting import PromptLookup
from hf_speculative.lookahead import Adaptive, Constant, Costs

pytestmark = pytest.mark.measures
KWARGS = {"max_new_tokens": 24, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(costs, "_known", type(costs._known)())


@pytest.fixture(scope="module")
def small():
    """A target that is dear beside its draft."""
    return tiny.llama(layers=4, hidden=64), tiny.llama(seed=1, layers=1, hidden=16)


def known(target) -> list[Costs]:
    return [found for pairs in costs._known[target].values() for found in pairs.values()]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_costs_are_measured_once_and_stated(small, batch_size):
    target, draft = small
    seconds = []
    for _ in range(2):
        with hs.record() as stats:
            hs.generate(target, **tiny.prompts(batch_size), draft_model=draft, **KWARGS)
        seconds.append(stats.seconds["probe"])
    assert seconds[0] > 0 == seconds[1] and stats.to_dict()["seconds"]["probe"] == 0
    (found,) = known(target)
    assert set(found.rounds) == {1, batch_size}, "the rows that are left last are few"
    for times in found.rounds.values():
        assert 0 in times and sorted(times.values()) == list(times.values())


def test_a_constant_length_measures_nothing(small):
    target, draft = small
    for settings in (
        {"num_draft_tokens": 3},
        {"speculative_config": hs.SpeculativeConfig(schedule=Constant(2))},
        {"speculative_config": hs.SpeculativeConfig(schedule=Adaptive(costs=Costs({1: {0: 1.0, 1: 1.1}})))},
        {"num_assistant_tokens_schedule": "heuristic"},
    ):
        with hs.record() as stats:
            hs.generate(target, **tiny.prompts(1), draft_model=draft, **KWARGS, **settings)
        assert target not in costs._known and stats.num_draft_tokens > 0


class CountCalls(LogitsProcessor):
    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores


def test_nothing_of_the_call_is_touched(small):
    """Chance, processors with a memory and configs are as if the costs had been known."""
    target, draft = small
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
            **KWARGS,
        )
        results.append((out.tolist(), counter.num_calls, torch.rand(1).item()))
    assert results[0] == results[1], "the same seed gives the same tokens in the call that measures and in the next"
    assert str(configs) == str((target.generation_config, target.config, draft.generation_config, draft.config))


@pytest.mark.parametrize("kind", ["draft_model", "lookup", "early_exit", "own drafter", "bart"])
def test_every_kind_of_drafter(small, kind):
    target, draft = small
    sampling = {"do_sample": True, "reproducible": True}
    inputs = tiny.prompts(2)
    settings = {
        "draft_model": {"draft_model": draft},
        "lookup": {"prompt_lookup_num_tokens": 6},
        "early_exit": {"assistant_early_exit": 2},
        "own drafter": {"speculative_config": hs.SpeculativeConfig(drafter=PromptLookup(2))},
        "bart": {"draft_model": None},
    }[kind]
    if kind == "bart":
        target = tiny_bart(2)
        settings = {"draft_model": tiny_bart(1)}
    set_seed(5)
    expected = target.generate(**inputs, **KWARGS, do_sample=True)
    set_seed(5)
    found = hs.generate(target, **inputs, **settings, **KWARGS, **sampling)
    assert found.tolist() == expected.tolist()
    (measured,) = known(target)
    assert 2 in measured.rounds


def tiny_bart(layers):
    torch.manual_seed(0)
    sides = ("encoder", "decoder")
    config = BartConfig(vocab_size=tiny.VOCAB, d_model=16, max_position_embeddings=128, forced_eos_token_id=None)
    config.update({f"{side}_layers": layers for side in sides} | {f"{side}_attention_heads": 2 for side in sides})
    config.update({"eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 1})
    return BartForConditionalGeneration(config).eval()


def test_a_lookup_that_finds_nothing_has_costs_all_the_same(small, monkeypatch):
    target, _ = small
    ticks = itertools.count()  # by a clock on which every round takes as long: none is left out for being slow
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    with tiny.CountForwards(target) as passes:
        hs.generate(target, input_ids=torch.arange(1, 9)[None], prompt_lookup_num_tokens=4, **KWARGS)
    (found,) = known(target)
    assert found.rounds[1].keys() == set(costs.LENGTHS)
    assert {width - 1 for _, width in passes.lengths} >= set(costs.LENGTHS), "rounds as wide as real drafts"


def test_without_room_to_measure_costs_are_assumed():
    target, draft = tiny.llama(positions=24), tiny.llama(seed=1, layers=1, positions=24)
    hs.generate(target, **tiny.prompts(1), draft_model=draft, max_new_tokens=12)
    (found,) = known(target)
    share = draft.num_parameters() / target.num_parameters()
    assert found.rounds[1] == {0: 1.0, 1: 1 + share + costs.ASSUMED_VERIFICATION}


def test_threads_measure_a_pair_once(small):
    target, draft = small
    seconds = []

    def run():
        out = hs.generate(target, **tiny.prompts(1), draft_model=draft, return_dict_in_generate=True, **KWARGS)
        seconds.append(out.statistics.seconds["probe"])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seconds) == 3 and sum(s > 0 for s in seconds) == 1


def test_costs_go_with_the_model():
    target = tiny.llama()
    hs.generate(target, **tiny.prompts(1), draft_model=tiny.llama(seed=1, layers=1), **KWARGS)
    assert len(costs._known) == 1
    del target
    gc.collect()
    assert len(costs._known) == 0
