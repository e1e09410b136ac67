"""Attention over grouped keys: the same numbers as transformers', no copy of the context, and nothing of the user's changed."""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_speculative as hs
from hf_speculative.models import RaggedModel
from hf_speculative.models.attention import NAME, WIDEST, folded_attention, with_folded_attention
from hf_speculative.types import Batch
from tests.architectures.check import build
from tests.support import tiny

BATCH, KEY_HEADS, SLOTS, DIM = 2, 2, 19, 8


def masks(heads, width):
    """What models hand over: causal, windowed, one row for all queries, additive, one for each head, none."""
    slots, query = torch.arange(SLOTS), torch.tensor([9, 12])[:, None, None, None] + torch.arange(width)[:, None]
    causal = slots <= query
    windowed = causal & (slots > query - 4)
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    by_head = windowed.expand(-1, heads, -1, -1) & (torch.rand(BATCH, heads, width, SLOTS) > 0.3) | (slots == query)
    return [causal, causal[:1], windowed, causal[:, :, :1], additive, by_head, by_head[:, :, :1], None]


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_same_as_transformers(groups):
    torch.manual_seed(0)
    module, heads = SimpleNamespace(num_key_value_groups=groups, is_causal=True), groups * KEY_HEADS
    for width, value_dim in itertools.product([1, 2, 3, 4, 5, 6, WIDEST + 1], [DIM, 5]):
        query = torch.randn(BATCH, width, heads, DIM).transpose(1, 2)
        key, value = torch.randn(BATCH, KEY_HEADS, SLOTS, DIM), torch.randn(BATCH, KEY_HEADS, SLOTS, value_dim)
        biased = {"position_bias": torch.randn(1, heads, width, SLOTS)}
        for mask in masks(heads, width):
            for more in ({}, {"scaling": 0.3, "sliding_window": 4}, biased):
                expected, _ = sdpa_attention_forward(module, query, key, value, mask, **more)
                found, weights = folded_attention(module, query, key, value, mask, **more)
                torch.testing.assert_close(found, expected)
                assert weights is None and found.is_contiguous()


class Allocations(TorchDispatchMode):
    """The sizes of all tensors that operations make while it is open, views not counted."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {part.untyped_storage().data_ptr() for part in tree_leaves((args, kwargs)) if torch.is_tensor(part)}
        result = func(*args, **(kwargs or {}))
        made = [part for part in tree_leaves(result) if torch.is_tensor(part)]
        self.sizes += [part.numel() for part in made if part.untyped_storage().data_ptr() not in given]
        return result


@torch.no_grad()
@pytest.mark.parametrize("rows_differ", [False, True])
@pytest.mark.parametrize("num_drafted", [0, 4])
def test_no_copy_of_the_context(num_drafted, rows_differ):
    """Its cost would grow with the context: several times that of the pass at 8k."""
    context = 512
    model, padding = tiny.llama(positions=1024), [0, 3 if rows_differ else 0]
    tokens = torch.randint(1, tiny.VOCAB, (2, context))
    batch, cached = Batch(tokens, padding, max_length=context + 20), RaggedModel(model)
    cached.prefill(batch)
    batch.put(torch.randint(1, tiny.VOCAB, (2, num_drafted)))
    with Allocations() as allocations:
        cached.logits(batch, ahead=num_drafted, num_last=num_drafted + 1)
    heads = model.config.num_key_value_heads
    size_of_keys = len(tokens) * heads * context * model.config.hidden_size // model.config.num_attention_heads
    assert 0 < max(allocations.sizes) < size_of_keys


def state(model):
    """All that modules hold, by identity, and all that configs say."""
    held = [value for module in model.modules() for value in vars(module).values()]
    inside = [part for value in held if isinstance(value, dict) for part in (*value, *value.values())]
    configs = [copy.deepcopy(vars(module.config)) for module in model.modules() if hasattr(module, "config")]
    return list(map(id, held + inside)), configs


def test_the_users_model_stays_as_it_is():
    model = tiny.llama()
    inputs, before = tiny.prompts(3), state(model)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    twin = with_folded_attention(model)
    assert [layer.self_attn.config._attn_implementation for layer in twin.model.layers] == [NAME, NAME]
    assert twin.config is model.config and twin.lm_head is model.lm_head
    hs.generate(model, **inputs, draft_model=model, max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert state(model) == before and ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa
    for name, weight in twin.named_parameters():
        assert weight is model.get_parameter(name)


def compiled(model):
    model.compile(backend="eager")


def replaced(model):
    model.model.forward = lambda *args, **kwargs: type(model.model).forward(model.model, *args, **kwargs)


def eager(model):
    model.set_attn_implementation("eager")


@pytest.mark.parametrize("change", [compiled, replaced, eager])
def test_what_a_copy_would_not_run_is_left_alone(change):
    model = tiny.llama()
    change(model)
    assert with_folded_attention(model) is model


def test_attention_that_asks_for_the_name_sdpa_keeps_it():
    """MiniMax M3 builds the mask of its sparse attention for "sdpa" and "eager" alone: under another name it would see all."""
    model = build("causal", "minimax_m3_vl_text")
    assert with_folded_attention(model) is model


class Passes(ModelHook):
    def __init__(self):
        self.modules = []

    def pre_forward(self, module, *args, **kwargs):
        self.modules.append(module)
        return args, kwargs


@torch.no_grad()
def test_hooks_of_accelerate_run_on_the_copy():
    """They lie around decoder layers where `device_map` spreads a model over devices."""
    model, inputs, passes = tiny.llama(), tiny.prompts(2), Passes()
    expected = model(**inputs).logits
    for layer in model.model.layers:
        add_hook_to_module(layer, passes)
        add_hook_to_module(layer.self_attn, AlignDevicesHook("cpu", io_same_device=True))
    twin = with_folded_attention(model)
    torch.testing.assert_close(twin(**inputs).logits, expected)
    assert passes.modules == list(twin.model.layers)
    assert twin.model.layers[0].self_attn.config._attn_implementation == NAME


@torch.no_grad()
@pytest.mark.parametrize("num_drafted", [0, 4])
def test_a_window_costs_what_the_window_costs(num_drafted, monkeypatch):
    """Layers with a window read no more of a long text than the window, and what rows differ by."""
    model, seen = tiny.build("gemma3_text"), []

    def noted(query, key, *args, **kwargs):
        seen.append(key.shape[2])
        return original(query, key, *args, **kwargs)

    original = torch.nn.functional.scaled_dot_product_attention
    batch = Batch(torch.randint(1, tiny.VOCAB, (2, 64)), [0, 3], max_length=80)
    cached = RaggedModel(model)
    cached.prefill(batch)
    batch.put(torch.randint(1, tiny.VOCAB, (2, num_drafted)))
    monkeypatch.setattr("hf_speculative.models.attention.scaled_dot_product_attention", noted)
    cached.logits(batch, ahead=num_drafted, num_last=num_drafted + 1)
    assert seen == [num_drafted + model.config.sliding_window + 3, 64 + num_drafted]
