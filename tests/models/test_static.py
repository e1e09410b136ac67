"""Passes of static shape: captured once and replayed, by an emulation of CUDA graphs."""

import copy
import gc
import weakref

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module

import hf_speculative as hs
from hf_speculative.models import RaggedModel, execution, pool, replays
from hf_speculative.models.execution import Execution
from hf_speculative.models.static import StaticModel
from tests.architectures.check import build
from tests.support import distributions, tiny
from tests.support.cases import RECURRENT, a_third, slow_but
from tests.support.execution import run_as
from tests.support.fake_graphs import Recorded
from tests.support.plain import same_as_plain, takes_lanes

GREEDY = {"do_sample": False, "pad_token_id": 0}


@pytest.fixture
def recorded(monkeypatch):
    """Every ragged model of a call is captured."""
    capture = Recorded()
    pool._kept.clear()
    monkeypatch.setattr(replays, "NUM_EAGER", 0)
    make = lambda model, *_, clamp_ids=False, **__: StaticModel(model, clamp_ids, capture=capture)  # noqa: E731
    monkeypatch.setattr("hf_speculative.call.parts.ragged_model", make)
    monkeypatch.setattr("hf_speculative.drafting.draft_model.ragged_model", make)
    return capture


def unequal(model, draft, num_rows=3, width=12, optimize=False, **kwargs):
    """Prompts of unequal length whose rows end at different times, decoded both ways: what plain decoding gives."""
    inputs = {name: value.to(model.device) for name, value in tiny.prompts(num_rows, width).items()}
    inputs |= GREEDY | {"max_new_tokens": 40} | kwargs
    drafts = {"draft_model": draft, "num_draft_tokens": 3}
    found = hs.generate(model, **inputs, **drafts, speculative_config=hs.SpeculativeConfig(optimize=optimize))
    expected = model.generate(**inputs)
    assert inputs["do_sample"] or found.tolist() == expected.tolist()
    return expected


@pytest.mark.parametrize("kind", slow_but(["gemma3_text", "gpt2"], "gpt2", every=True))
def test_replays_give_what_plain_decoding_gives(kind, recorded):
    """With windows and learned positions among others."""
    model = tiny.build(kind)
    draft = tiny.noisy_copy(model)
    for num_rows in (1, 3):
        unequal(model, draft, num_rows)
    num_captures = recorded.num_captures
    unequal(model, draft)
    assert recorded.num_captures == num_captures, "nothing is captured twice"
    assert recorded.num_replays > 5 * num_captures


@pytest.mark.parametrize("kind", ["bart", "bloom", "mpt"])
def test_positions_that_modules_count(kind, recorded):
    """Tables of them, and biases by distance."""
    model = build("causal", kind)
    for num_rows in (1, 3):
        unequal(model, tiny.noisy_copy(model), num_rows)
    assert recorded.num_replays > recorded.num_captures > 0


@pytest.mark.parametrize("kind", ["gemma3_text", "llama"])
def test_trees(kind, recorded):
    """A draft model's levels are columns of its captured passes; the path that was kept moves up, in rows of unequal length."""
    model = tiny.build(kind)
    draft = tiny.noisy_copy(model)
    call = {"draft_model": draft, "num_draft_tokens": 6, "tree_top_k": 3}
    for num_rows in (1, 3):
        found = same_as_plain(model, tiny.prompts(num_rows, width=12), **call)
        assert recorded.num_replays > 0 and found.num_accepted_draft_tokens > 0
    trees = [shapes for shapes in pool._kept[model].idle.captured if (num_rows, 6) in shapes]
    assert trees, "passes over six nodes among them"


@pytest.mark.slow  # one kind is captured on simulated devices, in tests/test_devices.py
@pytest.mark.parametrize("kind", a_third(RECURRENT))
def test_states_of_recurrent_layers(kind, recorded):
    """A replay reads those that the last one left, in rows of unequal length; a draft model's passes are one replay."""
    model = build("causal", kind)
    draft = tiny.noisy_copy(model, 0.05)
    for num_rows in (1, 3, 2):
        for source in (draft, "auto"):
            before = recorded.num_replays
            same_as_plain(model, tiny.prompts(num_rows, width=12), draft_model=source, num_draft_tokens=3)
            assert recorded.num_replays > before + 4
    assert any("draft" in kind for kind in pool._kept[draft].idle.captured)
    takes_lanes(model, tiny.texts(5), batch_size=2, draft_model=draft, num_draft_tokens=3)


def test_rows_that_leave_and_contexts_that_grow(target, draft, recorded, monkeypatch):
    monkeypatch.setattr(replays, "MIN_SLOTS", 16)
    monkeypatch.setattr("hf_speculative.models.ragged_cache.MAX_AHEAD", 4)
    plain = target.generate(**tiny.prompts(3, width=12), **GREEDY, max_new_tokens=40)
    ends = sorted({int(row[length]) for row, length in zip(plain, (20, 33, 45), strict=True)})
    expected = unequal(target, draft, eos_token_id=ends)
    assert len({(expected[row] == 0).sum().item() for row in range(3)}) > 1  # rows really end apart


def test_rows_that_take_the_place_of_others(target, draft, recorded):
    takes_lanes(target, tiny.texts(7), batch_size=2, draft_model=draft, num_draft_tokens=3)
    assert recorded.num_replays > 20


def test_weights_that_moved_are_not_replayed(target, draft, recorded):
    target = copy.deepcopy(target)
    unequal(target, draft)
    num_captures = recorded.num_captures
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.data = parameter.data + 0.05 * torch.randn_like(parameter)
    unequal(target, draft)
    assert recorded.num_captures > num_captures
    with torch.no_grad():  # in place, they are seen without
        for parameter in target.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    unequal(target, draft)


def test_modules_that_changed_mode_are_seen(recorded):
    target = tiny.build("llama", attention_dropout=0.5)
    draft = tiny.noisy_copy(target)
    hs.generate(target.train(), **tiny.prompts(3, width=12), **GREEDY, max_new_tokens=40, draft_model=draft)
    unequal(target.eval(), draft)


def test_capturing_spends_no_randomness(target, draft, recorded):
    inputs = tiny.prompts(3) | {"do_sample": True, "pad_token_id": 0, "max_new_tokens": 20, "num_draft_tokens": 3}
    calls = []
    for _ in range(2):  # captured, then replayed
        torch.manual_seed(5)
        calls.append((hs.generate(target, **inputs, draft_model=draft).tolist(), torch.rand(1).item()))
    assert calls[0] == calls[1] and recorded.num_captures > 0


def test_passes_that_cannot_be_captured_run_eagerly_and_say_why(target, draft, recorded, monkeypatch):
    def refuse(self, function, inputs, beside):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recorded, "__call__", refuse)
    with pytest.warns(UserWarning, match="LlamaForCausalLM cannot be captured and run eagerly: operation"):
        unequal(target, draft)
    for model in (target, draft):
        assert not pool._kept[model].idle.captured, "what belongs to a call went with it"


@pytest.mark.parametrize("num_slots", [1, 255, 256, 257, 1024, 1025, 5000, 40_000])
def test_the_ladder_has_few_steps_and_wastes_little(num_slots):
    assert num_slots <= replays.ladder(num_slots) <= max(num_slots + 255, 1.25 * num_slots + 1)
    assert replays.ladder(replays.ladder(num_slots)) == replays.ladder(num_slots)


class TestThePool:
    def test_memory_is_kept_for_the_next_call_and_let_go(self, target, draft):
        hs.detach(target)
        unequal(target, draft)
        cache = pool._kept[target].idle
        address = cache.layers[0].keys.data_ptr()
        unequal(target, draft, num_rows=2)
        assert pool._kept[target].idle is cache and cache.layers[0].keys.data_ptr() == address
        hs.detach(hs.attach(target, draft))
        assert target not in pool._kept and draft not in pool._kept

    def test_what_a_call_left_is_not_seen_by_the_next(self, target, draft):
        unequal(target, draft)
        for layer in pool._kept[target].idle.layers:
            layer.keys[:, :, : pool._kept[target].idle.used] = torch.nan
            layer.values[:, :, -1] = torch.inf
        unequal(target, draft)

    @pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
    def test_a_call_in_another_mode_gets_other_memory(self, target, draft, mode):
        with mode():
            unequal(target, draft)
        unequal(target, draft)

    def test_a_much_larger_request_does_not_stay(self, target, draft, monkeypatch):
        monkeypatch.setattr("hf_speculative.models.ragged_cache.MAX_AHEAD", 16)
        unequal(target, draft, max_new_tokens=200)
        large = pool._kept[target].idle.capacity
        unequal(target, draft, max_new_tokens=8)
        assert pool._kept[target].idle.capacity < large / 3

    @pytest.mark.parametrize("windows", [(4, None), (4, 20), (20, 4), (None, 4)])
    def test_a_window_that_changed_is_seen(self, windows):
        model = tiny.build("mistral", sliding_window=windows[0])
        before = unequal(model, model)
        model.config.sliding_window = windows[1]
        assert unequal(model, model).tolist() != before.tolist()

    def test_two_calls_at_once_have_two_caches(self, target):
        first, second = RaggedModel(target), RaggedModel(target)
        assert first.cache is not second.cache

    @pytest.mark.parametrize("is_static", [False, True])
    def test_what_is_kept_dies_with_its_model(self, draft, is_static, request):
        if is_static:
            request.getfixturevalue("recorded")
        model = tiny.build("llama")
        assert model.config.num_key_value_heads < model.config.num_attention_heads
        hs.attach(model, draft)
        model.generate(**tiny.prompts(2), **GREEDY, max_new_tokens=8)
        gone = weakref.ref(model)
        assert model in pool._kept
        del model
        gc.collect()
        assert gone() is None


def test_models_that_cannot_be_compiled_say_why(target):
    assert execution.eager_reason(target) is None
    hooked = tiny.llama()
    add_hook_to_module(hooked.model.layers[0], ModelHook())
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM are not compiled, and run eagerly: it .*model\.layers\.0"):
        assert type(execution.ragged_model(hooked, execution=Execution(compile=True))) is RaggedModel
    assert type(execution.ragged_model(hooked, execution=Execution(compile="auto"))) is RaggedModel


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["llama", *RECURRENT])
def test_cuda_graphs(kind, monkeypatch):
    run_as(monkeypatch, captures=True)
    model = build("causal", kind)
    target, draft = copy.deepcopy(model).cuda(), tiny.noisy_copy(model, 0.05).cuda()
    for _ in range(2):
        unequal(target, draft, optimize=True)
    assert pool._kept[target].idle.captured and pool._kept[draft].idle.captured


class TestAllDraftTokensInOneReplay:
    def test_a_round_is_two_replays(self, target, draft, recorded):
        unequal(target, draft)
        before = recorded.num_replays
        with hs.record() as statistics:
            unequal(target, draft)
        num_rounds = statistics.num_target_forwards
        assert statistics.num_draft_forwards > 2 * num_rounds  # three tokens a round, one after the other
        assert recorded.num_replays - before <= 2 * num_rounds

    def test_the_distribution_is_the_targets(self, recorded):
        target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
        settings = {"temperature": 1.5, "top_k": 3}
        config = {"draft_model": tiny.noisy_copy(target, noise=0.4, seed=5), "num_draft_tokens": 2}
        for prompt, samples in distributions.sample(target, config, num_samples=1500, **settings):
            distributions.assert_samples(samples, distributions.exact_distribution(target, prompt, **settings))
        assert recorded.num_replays

    def test_other_settings_are_captured_anew(self, target, draft, recorded):
        for temperature in (0.5, 2.0, 0.5):
            torch.manual_seed(0)
            unequal(target, draft, do_sample=True, temperature=temperature)
            kinds = [kind for kind in pool._kept[draft].idle.captured if "draft" in kind]
        assert ["temperature" in str(kind) for kind in kinds] == [True] * len(kinds)
        assert len({kind[2] for kind in kinds}) == 2

    def test_prefixes_and_stops_that_matter_go_a_pass_at_a_time(self, target, draft, recorded):
        call = {"draft_model": draft, "num_draft_tokens": 3}
        same_as_plain(target, tiny.prompts(2), {"repetition_penalty": 1.3}, **call)
        same_as_plain(target, tiny.prompts(2), **call, assistant_confidence_threshold=0.3)
        assert not [kind for kind in pool._kept[draft].idle.captured if "draft" in kind]
