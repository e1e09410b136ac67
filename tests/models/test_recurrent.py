"""Recurrent layers on the ragged path: a state for each row, stepped column by column."""

import inspect
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional
from transformers import DynamicCache

import hf_speculative as hs
from hf_speculative.models import (
    RaggedModel,
    UniversalModel,
    choose,
    prompts as reading,
    ragged,
    ragged_deviation,
    stepped,
    steps,
)
from hf_speculative.models.execution import Execution, ragged_model
from hf_speculative.models.inputs import text_inputs
from hf_speculative.models.prompts import read
from hf_speculative.models.recurrent_cache import Recurrence, RecurrentLayer
from hf_speculative.models.static import StaticModel
from hf_speculative.models.written import StateLayout
from tests.architectures.check import build
from tests.architectures.configs import VOCAB
from tests.support import tiny
from tests.support.cases import RECURRENT
from tests.support.plain import agrees
from tests.support.rounds import assert_fresh, begun, check_rounds
from tests.support.trees import KnowingDrafter, check_trees

#: one a kind of recurrence and of layer: gated deltas, a state space alone and beside attention, short convolutions, scans
TYPES = ("qwen3_5_text", "olmo_hybrid", "kimi_linear", "granitemoehybrid", "falcon_h1", "mamba2", "nemotron_h")
TYPES += ("lfm2", "jamba", "zamba")
#: those whose prompts and steps run through different kernels
STEPPED = ("qwen3_5_text", "kimi_linear", "mamba2", "jamba")
NEW = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


def _inputs(kernel, num_columns, strength, random):
    """A state, and what `kernel` takes; `strength` is that of decays, and keys of the first head repeat."""
    rows, heads, groups, dim, width = 3, 4, 2, 8, 6
    if kernel is steps.state_space:
        x, dt, A = (
            random(rows, num_columns, heads, dim),
            random(rows, num_columns, heads),
            -strength * random(heads).abs(),
        )
        B, C = random(rows, num_columns, groups, width), random(rows, num_columns, groups, width)
        return random(rows, heads, dim, width), (x, dt, A, B, C, random(heads))
    if kernel is steps.selective_scan:
        x, dt, A = random(rows, dim, num_columns), random(rows, dim, num_columns), -strength * random(dim, width).abs()
        return random(rows, dim, width), (x, dt, A, random(rows, width, num_columns), random(rows, width, num_columns))
    query, key = random(rows, num_columns, groups, dim), random(rows, num_columns, groups, dim)
    key[:, :, 0] = key[:, :1, 0]
    value, beta = random(rows, num_columns, heads, width), random(rows, num_columns, heads).sigmoid()
    channels = () if kernel is steps.gated_delta_rule else (dim,)
    log_decays = -strength * random(rows, num_columns, heads, *channels).abs()
    unit = partial(functional.normalize, dim=-1)
    return random(rows, heads, dim, width), (unit(query), unit(key), value, log_decays, beta)


def _by_channel(*args):
    return steps.gated_delta_rule(*args)


KERNELS = steps.gated_delta_rule, _by_channel, steps.state_space, steps.selective_scan


def _at_once(kernel, state, is_filler, ancestors):
    """The columns at once, and a function that gives the states after each."""
    layout = StateLayout("recurrent", 0, state.shape[1:], state.dtype, kernel is not steps.selective_scan)
    *_, (shape, dtype) = layout.sizes(len(state), is_filler.shape[1], 1)
    at_once = steps.AtOnce(state, torch.empty(shape, dtype=dtype), is_filler, ancestors)

    def states() -> list:
        if not layout.adds_products:
            return at_once.new
        return torch.stack([layout.after(state, at_once.new, followed) for followed in ancestors.unbind(1)])

    return at_once, states


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("num_columns", "strength"), [(1, 1), (5, 1), (33, 0.01), (33, 30)])
def test_all_columns_at_once_are_those_one_by_one(kernel, num_columns, strength):
    """Weak decays and strong ones, of which sums of logarithms are large, tokens that repeat, and filler."""
    generator = torch.Generator().manual_seed(0)
    state, inputs = _inputs(kernel, num_columns, strength, partial(torch.randn, generator=generator))
    is_filler = torch.arange(num_columns) < torch.tensor([[0], [num_columns // 2], [0]])
    stepped = steps.Steps(state, is_filler, num_kept=num_columns)
    ancestors = torch.ones(num_columns, num_columns, dtype=torch.bool).tril() & ~is_filler[:, None]
    at_once, states = _at_once(kernel, state, is_filler, ancestors)
    (expected, _), (found, _) = kernel(stepped, *inputs), kernel(at_once, *inputs)
    if kernel is steps.selective_scan:
        expected, found = expected.transpose(1, 2), found.transpose(1, 2)
    torch.testing.assert_close(found[~is_filler], expected[~is_filler], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states(), torch.stack(stepped.states), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_columns_at_once_in_half_precision_and_with_decays_to_nothing(kernel):
    generator = torch.Generator().manual_seed(0)
    state, inputs = _inputs(kernel, 5, 1, partial(torch.randn, generator=generator))
    state, inputs = state.bfloat16(), [part.bfloat16() for part in inputs]
    if "gated" in kernel.__name__:
        inputs[3][:, 2] = float("-inf")
    stepped = steps.Steps(state, torch.zeros(3, 5, dtype=torch.bool), num_kept=5)
    ancestors = torch.ones(3, 5, 5, dtype=torch.bool).tril()
    at_once, states = _at_once(kernel, state, stepped.is_filler, ancestors)
    (expected, _), (found, _) = kernel(stepped, *inputs), kernel(at_once, *inputs)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.1)
    torch.testing.assert_close(states().float(), torch.stack(stepped.states).float(), rtol=0.05, atol=0.1)


def test_buffers_of_states_grow_and_do_not_shrink():
    """Captured passes hold their addresses, and each move copies all states."""
    key = 0, "recurrent", 0
    recurrence, grown = Recurrence([RecurrentLayer(1)]), []
    for num_columns in (3, 12, 1, 3, 12, 13, 2, 20):
        recurrence.reset(2)
        recurrence.columns, recurrence.num_columns = {key: [torch.full((2, 4), float(num_columns))]}, num_columns
        states, moved = recurrence.in_buffers()
        assert states[key].shape == (num_columns + 1, 2, 4) and (states[key][0] == num_columns).all()
        grown.append(moved)
    assert grown == [True, True, False, False, False, True, False, False]


@pytest.mark.parametrize("model_type", TYPES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type):
    model = build("causal", model_type)
    assert choose(model).name == "ragged"
    assert check_rounds(model).num_forwards < 30


@torch.no_grad()
@pytest.mark.parametrize("keeps_done", [True, False])
def test_states_of_rows_that_are_done_are_kept_for_the_end_of_a_call(keeps_done):
    """Which a server's may never reach."""
    batch, cached, _ = begun(build("causal", "lfm2"))
    cached.keeps_done = keeps_done
    cached.prefill(batch)
    cached.select([0, 2])
    assert bool(cached.cache.recurrence.behind) == keeps_done


@pytest.mark.parametrize("model_type", STEPPED)
def test_rounds_after_prompts_that_were_read_apart(model_type, monkeypatch):
    monkeypatch.setattr(reading, "A_PASS", 0)
    monkeypatch.setattr(ragged, "read", passes := Mock(wraps=read))
    check_rounds(build("causal", model_type))
    assert passes.call_count == 4


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("passes", ["eager", "static", "compiled"])
def test_nodes_of_trees_start_from_their_parents_states(model_type, passes, emulated):
    compiled = partial(ragged_model, execution=Execution(compile=True))
    check_trees(build("causal", model_type), make={"eager": RaggedModel, "static": StaticModel, "compiled": compiled}[passes])
    assert bool(emulated.runs) == (passes == "compiled")


class Always(hs.Schedule):
    """Drafts in the first round, too."""

    def plan(self, batch):
        return [9 if room else 0 for room in batch.rooms]


@pytest.mark.parametrize("width", [1, 7])
def test_a_tree_before_the_prompt_is_read(width):
    model, prompts = build("causal", "qwen3_5_text"), tiny.prompts(1, width)
    drafter = KnowingDrafter(model.generate(**prompts, **NEW).tolist(), VOCAB)
    agrees(model, prompts | NEW, draft_model=drafter, schedule=Always())
    assert drafter.num_branching > 0


@pytest.mark.parametrize("model_type", RECURRENT)
@pytest.mark.parametrize(("num_rows", "optimize", "do_sample"), [(1, False, False), (4, False, True), (3, True, False)])
def test_calls_with_trees(model_type, num_rows, optimize, do_sample, emulated):
    """Rows leave, too."""
    model, prompts = build("causal", model_type), tiny.prompts(num_rows, width=12)
    call = prompts | NEW | {"do_sample": do_sample}
    torch.manual_seed(0)
    rows = model.generate(**call).tolist()
    call |= {"eos_token_id": rows[0][-4]} if num_rows > 1 else {}
    own = [row[int((1 - mask).sum()) :] for row, mask in zip(rows, prompts["attention_mask"], strict=True)]
    drafter = KnowingDrafter(own, VOCAB)
    stats = agrees(model, call, draft_model=drafter, num_draft_tokens=9, optimize=optimize)
    assert drafter.num_branching > 0 and stats.mean_acceptance_length > 1.2
    assert bool(emulated.runs) == optimize


@torch.no_grad()
@pytest.mark.parametrize("model_type", ("qwen3_5_text", "granitemoehybrid", "lfm2"))
def test_rows_begin_again_where_no_state_is_kept(model_type):
    """Further back than any round goes."""
    model = build("causal", model_type)
    batch, cached, random = begun(model, num_rows=3)
    cached.logits(batch, ahead=0, num_last=1)
    batch.lengths, batch.host_lengths = batch.lengths - 1, [length - 1 for length in batch.host_lengths]
    batch.put(1 + random(VOCAB - 1, 3, 1))
    cached.rollback(batch)
    assert cached.host_seen == [0] * 3
    assert_fresh(model, batch, cached, 1)


@pytest.mark.parametrize("model_type", ("qwen3_next", "bamba", "lfm2_moe", "falcon_mamba"))
def test_calls_equal_plain_ones(model_type):
    """Greedy and under a seed, copies of a prompt; `test_caches` has stops and further turns."""
    model = build("causal", model_type)
    draft, inputs = tiny.noisy_copy(model, 0.05), tiny.prompts(3, vocab_size=VOCAB)
    sampled = NEW | {"do_sample": True, "top_k": 20, "num_return_sequences": 2}
    agrees(model, inputs | sampled, 4, draft_model=draft)
    agrees(model, inputs | NEW, draft_model=draft, num_draft_tokens=4)


def test_a_cache_under_another_name_is_refused():
    """transformers keeps none of what it needs to go on from it."""
    model, inputs = build("causal", "falcon_mamba"), tiny.prompts(3, vocab_size=VOCAB)
    settings = NEW | {"draft_model": tiny.noisy_copy(model, 0.05)}
    filled = hs.generate(model, **inputs, **settings, return_dict_in_generate=True).past_key_values
    for cache in (filled, DynamicCache(config=model.config)):
        with pytest.raises(ValueError, match="pass the whole text"):
            hs.generate(model, **inputs, **settings, cache_params=cache)


@torch.no_grad()
@pytest.mark.parametrize("path", ["ragged", "universal"])
@pytest.mark.parametrize("model_type", STEPPED)
def test_a_few_columns_never_run_the_kernel_of_prompts(model_type, path, monkeypatch):
    model = build("causal", model_type)
    batch, cached, random = begun(model, num_rows=2)
    called = ((module, name) for module in model.modules() for name in stepped.KERNELS if name in stepped._names_of(module))
    mixer, name = next(called)
    names = inspect.unwrap(type(mixer).forward).__globals__
    kernel = Mock(wraps=names[name])
    monkeypatch.setitem(names, name, kernel)
    cached = RaggedModel(model) if path == "ragged" else UniversalModel(model, text_inputs(model, batch))
    cached.logits(batch, ahead=0, num_last=1)
    assert kernel.called
    kernel.reset_mock()
    batch.put(1 + random(VOCAB - 1, 2, 4))
    batch.lengths, batch.host_lengths = batch.lengths + 1, [length + 1 for length in batch.host_lengths]
    cached.logits(batch, ahead=3, num_last=4)
    assert not kernel.called


@torch.no_grad()
def test_a_recurrence_of_another_kind_is_not_stepped(monkeypatch):
    """It takes the universal path by name, and would fail rather than be wrong."""
    model = build("causal", "qwen3_5_text")
    monkeypatch.setattr(stepped, "KERNELS", {})
    assert "another kind (Qwen3_5GatedDeltaNet)" in choose(model).reason
    assert ragged_deviation(model) == torch.inf
