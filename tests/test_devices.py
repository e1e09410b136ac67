"""On simulated GPUs: nothing mixes with the host, a round reads from the device once, and graphs are captured by the rules."""

import contextlib
import copy
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate import dispatch_model
from transformers import StoppingCriteria

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.models import pool, probe, replays
from hf_speculative.models.replays import CudaGraph, failed_on
from tests.architectures import inputs
from tests.architectures.check import build
from tests.support import fake_cuda, heads, tied, tiny
from tests.support.cases import slow_but
from tests.support.execution import run_as
from tests.support.one_read import (
    CAPTURED,
    CAPTURING,
    DEEPER,
    DRAFT,
    ONE_READ,
    SAMPLED,
    SETTINGS,
    TARGET,
    THREE,
    beams,
    ids,
    on,
    prompts,
    waits_by_round,
)


@pytest.fixture
def devices(monkeypatch):
    run_as(monkeypatch, captures=True)
    monkeypatch.setattr(replays, "NUM_EAGER", 0)
    failed_on.clear()
    with fake_cuda.simulated() as devices:
        yield devices


@pytest.fixture
def gpus(devices, monkeypatch):
    """Caches are taken to be right: to try them takes most of a call here, and one test does."""
    monkeypatch.setattr(probe, "ragged_deviation", lambda model: 0.0)
    return devices


def captured(function, tensor, beside=None) -> CudaGraph:
    return CudaGraph(torch.device("cuda:0"), function, (tensor,), beside)


#: like others in what they move
SLOW = (
    "bitwise, text",
    "graphs, window",
    "text",
    "length chosen",
    "token rule",
    "copies of a prompt",
    "scores",
    "guidance",
    "early exit",
    "auto, trees",
    "graphs",
)


@pytest.mark.parametrize("name", slow_but(ONE_READ, *(name for name in ONE_READ if name not in SLOW)))
def test_a_round_reads_once(name, gpus, monkeypatch):
    options = ONE_READ[name]
    model = DEEPER if name == "early exit" else TARGET
    target, draft = on("cuda:0", model, DRAFT)
    results = []

    def call(place, draft):
        given = {} if {"assistant_early_exit", "prompt_lookup_num_tokens"} & options.keys() else {"draft_model": draft}
        given = prompts(place) | SETTINGS | given | options
        return given | ({"draft_model": beams(draft)} if name == "beams, trees" else {})

    found = waits_by_round(monkeypatch, gpus, lambda: results.append(hs.generate(target, **call("cuda:0", draft))))
    for waits in found[name == "guidance" :]:  # whose first round prepares another prompt
        assert [wait.kind for wait in waits if CAPTURING not in wait.where] == ["read"], waits
    on_host = call("cpu", DRAFT)
    if not on_host["do_sample"]:
        on_host.pop("speculative_config", None)
        assert ids(results[0]) == ids(hs.generate(model, **on_host))


def test_rows_that_take_the_place_of_others_cost_no_read(gpus, monkeypatch):
    target, draft = on("cuda:0", TARGET, DRAFT)
    rows = [tiny.unpadded(tiny.prompts(5, width=8), row)["input_ids"][0] for row in range(5)]
    options = SETTINGS | THREE | {"batch_size": 2, "eos_token_id": [5, 9, 17]}
    results = []

    def run():
        results.extend(hs.generate_batches(target, rows, draft_model=draft, **options))

    assert all([wait.kind for wait in waits] == ["read"] for waits in waits_by_round(monkeypatch, gpus, run))
    for row, completion in zip(rows, results, strict=True):
        plain = TARGET.generate(row[None], **SETTINGS, eos_token_id=[5, 9, 17])
        assert completion.new_ids == plain[0, len(row) :].tolist()


@pytest.mark.parametrize("has_draft", slow_but([False, True], False))
def test_captured_rows_that_take_the_place_of_others(has_draft, gpus):
    target, draft = on("cuda:0", TARGET, DRAFT)
    hs.attach(target, optimize=True)
    texts = tiny.texts(7, width=8)
    options = SETTINGS | {"max_new_tokens": 20, "eos_token_id": [5, 9, 17], "draft_model": draft if has_draft else None}
    found = list(hs.generate_batches(target, texts, **options, batch_size=2))
    assert gpus.num_replays > 20
    for text, completion in zip(texts, found, strict=True):
        plain = TARGET.generate(torch.tensor([text]), **SETTINGS | {"max_new_tokens": 20, "eos_token_id": [5, 9, 17]})
        assert completion.new_ids == plain[0, len(text) :].tolist()


class TestMoreReads:
    """What cannot do with one, and why: docs/caches.md lists them."""

    def most(self, monkeypatch, gpus, target, call) -> int:
        found = waits_by_round(monkeypatch, gpus, lambda: hs.generate(target, **call))
        uploads = {wait.where for waits in found for wait in waits if wait.kind == "upload"}
        assert not [where for where in uploads if "stopping.py" not in where], "but transformers' stop strings"
        return max(sum(wait.kind == "read" for wait in waits) for waits in found)

    def test_a_draft_that_ends_where_it_is_unsure(self, gpus, monkeypatch):
        """One after each draft token, for whether to make the next."""
        target, draft = on("cuda:0", TARGET, DRAFT)
        call = prompts("cuda:0") | SETTINGS | THREE | {"draft_model": draft, "assistant_confidence_threshold": 0.05}
        assert 1 < self.most(monkeypatch, gpus, target, call) <= 4

    def test_criteria_of_the_users(self, gpus, monkeypatch):
        class NeverStops(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

        target, draft = on("cuda:0", TARGET, DRAFT)
        call = prompts("cuda:0", 1) | SETTINGS | THREE | {"draft_model": draft, "stopping_criteria": [NeverStops()]}
        assert 1 < self.most(monkeypatch, gpus, target, call) <= 5


@pytest.mark.parametrize("kind", slow_but(["dflash", "captured dflash", "captured eagle3", "gemma4", "gpt_neo"], "gpt_neo"))
def test_drafts_that_read_the_target_and_the_universal_path(kind, gpus):
    is_captured, kind = "captured" in kind, kind.removeprefix("captured ")
    if kind == "gpt_neo":
        model = build("causal", "gpt_neo")
        draft, options = tiny.noisy_copy(model, 0.05), THREE
    elif kind == "eagle3":
        (model, draft), options = heads.made("reduced vocabulary"), THREE
    else:
        model, draft = tied.with_dflash() if kind == "dflash" else tied.with_gemma4_assistant()
        options = {"num_draft_tokens": 4} if kind == "gemma4" else {"speculation_type": "dflash"}
    target, moved = on("cuda:0", model, draft)
    options = options | {"draft_model": moved} | as_keywords({"optimize": is_captured})
    for num_rows in (2, 3, 2):  # states are kept over calls, as keys and values are
        found = hs.generate(target, **prompts("cuda:0", num_rows), **SETTINGS, **options)
        assert ids(found) == ids(model.generate(**prompts("cpu", num_rows), **SETTINGS))
    assert bool(gpus.num_replays) == is_captured
    assert kind != "eagle3" or pool._kept[moved].idle.captured, "its own passes too"


@pytest.mark.parametrize("places", [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1")])
@pytest.mark.parametrize("is_captured", [False, True])
def test_target_and_draft_apart(places, is_captured, gpus):
    target, draft = (on(place, model)[0] for place, model in zip(places, (TARGET, DRAFT), strict=True))
    call = prompts(places[0]) | SETTINGS | THREE | as_keywords({"optimize": is_captured})
    assert ids(hs.generate(target, **call, draft_model=draft)) == ids(TARGET.generate(**prompts("cpu"), **SETTINGS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "gpt_neo"])
def test_a_draft_apart_on_the_universal_path(kind, gpus):
    model = build("seq2seq" if kind == "t5" else "causal", kind)
    draft = tiny.noisy_copy(model, 0.05)
    target, moved = on("cuda:0", model)[0], on("cuda:1", draft)[0]
    found = hs.generate(target, **prompts("cuda:0"), **SETTINGS, **THREE, draft_model=moved)
    assert ids(found) == ids(model.generate(**prompts("cpu"), **SETTINGS))


@pytest.mark.parametrize("draft_place", slow_but(["cuda:1", "cuda:0"], "cuda:1"))
def test_a_target_spread_over_two_devices(draft_place, gpus):
    places = {"model.layers.1": "cuda:1", "model.norm": "cuda:1", "lm_head": "cuda:1"}
    places |= dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.layers.0"), "cuda:0")
    target, draft = copy.deepcopy(DEEPER), on(draft_place, DRAFT)[0]
    for name, place in places.items():
        target.get_submodule(name).to(place)
    target = dispatch_model(target, places, force_hooks=True)
    for options in (THREE, {"draft_model": "auto"}):
        options = {"draft_model": draft} | options
        found = hs.generate(target, **prompts("cuda:0"), **SETTINGS, **options)
        assert ids(found) == ids(DEEPER.generate(**prompts("cpu"), **SETTINGS))


@pytest.mark.parametrize("dtype", slow_but([torch.float16, torch.bfloat16], torch.float16))
@pytest.mark.parametrize("options", [THREE, SAMPLED, CAPTURED], ids=["greedy", "sampled", "graphs"])
def test_half_precision(dtype, options, gpus):
    target, draft = (model.to(dtype) for model in on("cuda:0", TARGET, DRAFT))
    with hs.record() as stats:
        hs.generate(target, **prompts("cuda:0"), **SETTINGS | options, draft_model=draft)
    assert stats.num_accepted_draft_tokens > 0


class TestGraphs:
    def test_everything_that_a_graph_reads_is_kept(self, gpus):
        """Over several calls, batches and pools: a graph over memory that has gone, or that another one spoiled, shows."""
        target, draft = on("cuda:0", TARGET, DRAFT)
        for num_rows in (2, 1, 2):
            found = hs.generate(target, **prompts("cuda:0", num_rows), **CAPTURED, draft_model=draft)
            assert ids(found) == ids(TARGET.generate(**prompts("cpu", num_rows), **SETTINGS))
        assert gpus.num_replays > len(gpus.graphs) > 0

    def test_a_device_that_is_not_the_current_one(self, devices):
        target, draft = on("cuda:1", TARGET, DRAFT)
        found = hs.generate(target, **prompts("cuda:1"), **CAPTURED, draft_model=draft)
        assert ids(found) == ids(TARGET.generate(**prompts("cpu"), **SETTINGS))
        assert devices.num_replays > 0 and devices.timed == {1}, "captured, and timed, where the models are"

    def test_a_replay_of_other_bits(self, gpus):
        factors = [3.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="a replay gives other bits"):
            captured(lambda tensor: tensor * factors.pop(), torch.ones(3, device="cuda:0"))

    def test_random_numbers_go_on_after_a_capture_that_failed(self, gpus):
        calls = []

        def function(tensor):
            calls.append(tensor)
            return tensor.tolist() if len(calls) == 3 else tensor + 1  # as what only a capture does

        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            captured(function, torch.ones(3, device="cuda:0"))
        assert failed_on == {torch.device("cuda:0")}, "nothing is captured there any more"
        assert len({torch.empty(1, device="cuda:0").exponential_().item() for _ in range(3)}) == 3

    def test_memory_is_shared_while_there_is_a_graph(self, gpus):
        one = torch.ones(3, device="cuda:0")
        first = captured(torch.neg, one)
        second = captured(torch.exp, one, first)
        del first
        assert captured(torch.sin, one, second).pool is second.pool
        pool = second.pool
        del second
        with pytest.raises(RuntimeError, match="the pool went with its graphs"):
            captured(torch.cos, one, SimpleNamespace(pool=pool))

    def test_caches_that_grow(self, gpus, monkeypatch):
        """Captures end with the memory that they were made over, and others are made."""
        monkeypatch.setattr(replays, "MIN_SLOTS", 4)
        target = hs.attach(on("cuda:0", TARGET)[0], optimize=True)
        for length in (8, 40):
            settings = SETTINGS | {"max_new_tokens": length}
            found = target.generate(**prompts("cuda:0"), **settings, draft_model=None)
            assert ids(found) == ids(TARGET.generate(**prompts("cpu"), **settings))
        assert gpus.num_replays > 40

    @pytest.mark.parametrize("kind", slow_but(["qwen3_5_text", "falcon_h1", "lfm2", "mamba2"], "qwen3_5_text"))
    def test_states_of_recurrent_layers(self, kind, gpus, monkeypatch):
        model = build("causal", kind)
        target, draft = on("cuda:0", model, tiny.noisy_copy(model, 0.05))
        for num_rows, source in ((2, draft), (1, "auto"), (2, "auto"), (2, draft)):
            call, results = prompts("cuda:0", num_rows) | CAPTURED | {"draft_model": source}, []
            rounds = waits_by_round(monkeypatch, gpus, lambda: results.append(hs.generate(target, **call)))  # noqa: B023
            assert ids(results[0]) == ids(model.generate(**prompts("cpu", num_rows), **SETTINGS))
            for waits in rounds:  # mamba2 waits where it reads a prompt
                own = [wait.kind for wait in waits if CAPTURING not in wait.where and "ragged.py" not in wait.where]
                assert own == ["read"], waits
        assert gpus.num_replays > 0

    @pytest.mark.parametrize("kind", slow_but(["bart", "t5", "whisper"], "bart"))
    def test_what_an_encoder_gave(self, kind, gpus, monkeypatch):
        mapping = "speech" if kind == "whisper" else "seq2seq"
        model = build(mapping, kind)
        target, draft = on("cuda:0", model, tiny.noisy_copy(model, 0.05))
        for num_rows in (2, 1, 2):
            given, results = inputs.prompts(mapping, model, num_rows), []
            call = {name: part.to("cuda:0") for name, part in given.items()} | CAPTURED | {"draft_model": draft}
            rounds = waits_by_round(monkeypatch, gpus, lambda: results.append(hs.generate(target, **call)))  # noqa: B023
            assert ids(results[0]) == ids(model.generate(**given, **SETTINGS))
            for waits in rounds[2:]:  # both have read their prompts
                assert [wait.kind for wait in waits if CAPTURING not in wait.where] == ["read"], waits
        assert gpus.num_replays > 0

    def test_a_target_whose_replays_differ(self, gpus, monkeypatch):
        target, draft = on("cuda:0", TARGET, DRAFT)
        monkeypatch.setattr("hf_speculative.models.replays.are_equal", mock.Mock(side_effect=[True, False] * 2))
        with pytest.warns(UserWarning, match="cannot be captured and run eagerly: a replay gives other bits"):
            first = hs.generate(target, **prompts("cuda:0"), **CAPTURED, draft_model=draft)
        before = gpus.num_replays
        second = hs.generate(target, **prompts("cuda:0"), **CAPTURED, draft_model=draft)
        assert ids(first) == ids(second) == ids(TARGET.generate(**prompts("cpu"), **SETTINGS))
        assert gpus.num_replays == before, "and nothing is captured later"

    @pytest.mark.parametrize("why", ["autocast", "hook"])
    def test_what_a_replay_would_not_do(self, why, gpus):
        """Copies of weights that autocast makes go when it ends; a hook runs in no replay."""
        target, draft = on("cuda:0", TARGET, DRAFT)
        with contextlib.ExitStack() as stack:
            if why == "autocast":
                stack.enter_context(mock.patch.object(torch, "is_autocast_enabled", lambda device: True))
            else:
                target.model.norm.register_forward_hook(lambda module, inputs, output: output)
                draft.model.norm.register_forward_hook(lambda module, inputs, output: output)
            hs.generate(target, **prompts("cuda:0"), **CAPTURED, draft_model=draft)
        assert not gpus.num_replays

    def test_a_limit(self, gpus, monkeypatch):
        monkeypatch.setattr(replays, "MOST_CAPTURED", 2)
        target, draft = on("cuda:0", TARGET, DRAFT)
        for temperature in (0.5, 0.7, 0.9):
            options = CAPTURED | SAMPLED | {"temperature": temperature}
            hs.generate(target, **prompts("cuda:0"), **options, draft_model=draft)
        assert len(gpus.graphs) <= 4 and gpus.num_replays

    def test_trees_of_like_sizes_are_one_kind(self, gpus):
        target = hs.attach(on("cuda:0", TARGET)[0], "auto", optimize=True)
        for seed in range(4):
            call = {name: value.to("cuda:0") for name, value in tiny.prompts(2, width=8, seed=seed).items()}
            settings = SETTINGS | {"max_new_tokens": 40}
            expected = TARGET.generate(**tiny.prompts(2, width=8, seed=seed), **settings)
            assert ids(target.generate(**call, **settings)) == ids(expected)
        kinds = [kind for kind in pool._kept[target].idle.captured if kind[-2][1] > 1]
        assert len(kinds) > 3 and {replays.rounded_up(kind[-2][1]) for kind in kinds} == {kind[-2][1] for kind in kinds}
        assert {kind[3][1] - kind[-2][1] for kind in kinds} == {1}, "columns follow from nodes"

    def test_the_generator_that_replays_draw_from_is_known(self, gpus):
        weights = torch.ones(3, device="cuda:0")
        draw = lambda tensor: torch.empty_like(tensor).exponential_()  # noqa: E731
        replay = captured(draw, weights)
        assert replay(weights).tolist() != replay(weights).tolist()
        own = torch.Generator("cuda:0")
        with pytest.raises(RuntimeError, match="does not know"):
            captured(lambda tensor: torch.empty_like(tensor).exponential_(generator=own), weights)


class TestTheSimulation:
    """It would be of no use if it let faults pass."""

    @pytest.mark.parametrize(
        "fault",
        [
            lambda gpu, host: gpu + host,
            lambda gpu, host: gpu.scatter_(0, host.long(), gpu),
            lambda gpu, host: torch.cat([gpu, host]),
            lambda gpu, host: gpu.exponential_(generator=torch.Generator()),
            lambda gpu, host: gpu + torch.ones(3, device="cuda:1"),
        ],
    )
    def test_mixing_fails(self, fault, gpus):
        with pytest.raises(RuntimeError, match=r"tensors? on"):
            fault(torch.ones(3, device="cuda:0"), torch.ones(3))

    @pytest.mark.parametrize(
        "wait",
        [
            lambda gpu: gpu.tolist(),
            lambda gpu: bool(gpu.any()),
            lambda gpu: gpu[gpu > 0],
            lambda gpu: gpu[[0, 1]],
            lambda gpu: gpu.nonzero(),
            lambda gpu: torch.tensor([1], device="cuda:0"),
            lambda gpu: torch.cuda.synchronize(),
        ],
    )
    def test_waiting_is_seen_and_cannot_be_captured(self, wait, gpus):
        gpu = torch.ones(3, device="cuda:0")
        wait(gpu)
        assert len(gpus.waits) >= 1
        with pytest.raises(RuntimeError, match="a pass waits for the device, in "):
            captured(lambda tensor: (wait(tensor), tensor)[1], gpu)

    def test_graphs_see_memory_and_nothing_else(self, gpus):
        gpu = torch.ones(3, device="cuda:0")
        factor, weight = [2.0], torch.ones(3, device="cuda:0")
        weights = [weight]
        replay = captured(lambda tensor: factor[0] * tensor * weights[0], gpu)
        factor[0] = 3.0
        weight.add_(1)
        first = replay(gpu)
        assert first.tolist() == [4.0] * 3
        captured(lambda tensor: tensor + 1, gpu, replay)(gpu)
        assert first.isnan().all(), "what a graph gave lasts until the next of its pool"
        weights.clear()
        del weight
        with pytest.raises(RuntimeError, match="freed"):
            replay(gpu)


def test_a_generator_of_another_device_is_refused(gpus):
    (target,) = on("cuda:0", TARGET)
    call = prompts("cuda:0") | SETTINGS | {"do_sample": True, "draft_model": "auto"}
    with pytest.raises(ValueError, match=r"`generator` draws on cpu .* give `torch.Generator\('cuda'\)`"):
        hs.generate(target, **call, speculative_config=hs.SpeculativeConfig(generator=torch.Generator()))
