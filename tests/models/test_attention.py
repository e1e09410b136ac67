"""Attention over grouped keys: the same numbers as transformers', no copy of the context, and nothing of the user's changed."""

import copy
import gc
import itertools
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_speculative as hs
from hf_speculative.models import RaggedModel, RecordingModel
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
        for mask in masks(heads, width):
            for more in (
                {},
                {"scaling": 0.3, "sliding_window": 4},
                {"position_bias": torch.randn(1, heads, width, SLOTS)},
            ):
                expected, _ = sdpa_attention_forward(module, query, key, value, mask, **more)
                found, weights = folded_attention(module, query, key, value, mask, **more)
                torch.testing.assert_close(found, expected)
                assert weights is None and found.is_contiguous()


def test_a_mask_is_made_once_for_all_layers():
    """As it is added to scores: torch makes that of a boolean mask in each layer."""
    groups = 2
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    mask = masks(groups * KEY_HEADS, 3)[0]
    for dtype in (torch.float32, torch.bfloat16):
        query, keys = (torch.randn(BATCH, heads, n, DIM, dtype=dtype) for heads, n in ((4, 3), (KEY_HEADS, SLOTS)))
        expected = sdpa_attention_forward(module, query, keys, keys, mask.clone())[0]
        num_made = []
        for _ in range(3):
            with Allocations() as made:
                torch.testing.assert_close(folded_attention(module, query, keys, keys, mask)[0], expected)
            num_made.append(sum(size == BATCH * groups * 3 * SLOTS for size in made.sizes))
        assert num_made[0] > 0 and num_made[1:] == [0, 0]
    gone = weakref.ref(mask)
    gc.disable()
    try:
        del mask
        assert gone() is None, "what was made of it does not keep it"
    finally:
        gc.enable()


@pytest.mark.parametrize("heads", [1, 2 * KEY_HEADS])
def test_what_is_added_already_is_kept_nowhere(heads):
    """It would keep itself: a cycle, and the memory of a mask a pass until Python looks for garbage."""
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    query, keys = torch.randn(BATCH, 2 * KEY_HEADS, 1, DIM), torch.randn(BATCH, KEY_HEADS, SLOTS, DIM)
    mask = torch.randn(BATCH, heads, 1, SLOTS)
    folded_attention(module, query, keys, keys, mask)
    assert not vars(mask)


def test_one_graph_under_compile():
    groups = 2
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    compiled = torch.compile(folded_attention, backend="eager", fullgraph=True)
    query, keys = torch.randn(BATCH, groups * KEY_HEADS, 3, DIM), torch.randn(BATCH, KEY_HEADS, SLOTS, DIM)
    mask = masks(groups * KEY_HEADS, 3)[0]
    expected = sdpa_attention_forward(module, query, keys, keys, mask)[0]
    torch.testing.assert_close(compiled(module, query, keys, keys, mask)[0], expected)


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


def test_the_model_may_be_used_at_the_same_time():
    model, inputs = tiny.llama(), tiny.prompts(3)
    expected, found = model(**inputs).logits, []
    twin = with_folded_attention(model)
    thread = threading.Thread(target=lambda: found.extend(model(**inputs).logits for _ in range(5)))
    thread.start()
    for _ in range(5):
        torch.testing.assert_close(twin(**inputs).logits, expected)
    thread.join()
    assert all(torch.equal(logits, expected) for logits in found)


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


def test_no_groups_and_none_that_share_keys_are_left_alone():
    for model in (tiny.build("gpt2"), tiny.build("llama", num_key_value_heads=4)):
        assert with_folded_attention(model) is model


def test_attention_that_asks_for_the_name_sdpa_keeps_it():
    """MiniMax M3 builds the mask of its sparse attention for "sdpa" and "eager" alone: under another name it would see all."""
    model = build("causal", "minimax_m3_vl_text")
    assert with_folded_attention(model) is model


def test_another_sdpa_is_respected(monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", lambda *args, **kwargs: None)
    model = tiny.llama()
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
@pytest.mark.parametrize("asked_before", [False, True])
def test_hidden_states_come_once_from_both(asked_before):
    model, inputs = tiny.llama(), tiny.prompts(1)
    if asked_before:
        model(**inputs, output_hidden_states=True)
    cached = RecordingModel(model, (0, 1, 2))
    assert cached.model is not model
    for each in (cached.model, model):
        assert len(each(**inputs, output_hidden_states=True).hidden_states) == 3


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
