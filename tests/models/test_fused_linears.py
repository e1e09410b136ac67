"""Layers that read the same input are packed as one weight, and computed as one product."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import hf_speculative as hs
from hf_speculative.models import packed_layers, packing
from hf_speculative.models.fused_linears import MOST_WASTED
from hf_speculative.models.packed_layers import dtypes, is_packed, linear
from tests.support import tiny
from tests.support.execution import have_equal_weights, num_packed, weights

pytestmark = pytest.mark.skipif(not dtypes(), reason="nothing can be packed on this machine")
KWARGS = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0}


@pytest.fixture
def products(monkeypatch):
    """The shapes of the packed weights of all products."""
    shapes = []

    def counted(input, packed, bias=None):
        shapes.append(tuple(packed.shape))
        return linear(input, packed, bias)

    monkeypatch.setattr(packed_layers, "linear", counted)
    return shapes


def logits(model, ids=None):
    with torch.no_grad():
        return model(tiny.prompts(2)["input_ids"] if ids is None else ids).logits


def test_one_product(packed, products):
    attention, mlp = packed.model.layers[0].self_attn, packed.model.layers[0].mlp
    logits(packed)
    rows = attention.q_proj.out_features + attention.k_proj.out_features + attention.v_proj.out_features
    of_a_layer = [(rows, 32), (32, 32), (2 * mlp.up_proj.out_features, 32), (32, mlp.up_proj.out_features)]
    assert products == 2 * of_a_layer + [(tiny.VOCAB, 32)]
    assert not attention.k_proj._parameters.held.together.kept, "inputs and products are let go"


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_who_looks_at_one_sees_all(plain, packed, name):
    attention = packed.model.layers[1].self_attn
    getattr(attention, name).weight.sum()
    assert num_packed(packed) == 12
    assert have_equal_weights(attention, weights(plain.model.layers[1].self_attn))
    packed.generate(**tiny.prompts(1), **KWARGS)
    assert num_packed(packed) == 15


def test_who_holds_one_keeps_it(model, products):
    held = model.model.layers[0].self_attn.k_proj.weight
    packing.pack_weights(model, has_small=True)
    assert num_packed(model) == 14
    logits(model)
    assert (held.shape[1], held.shape[1]) in products, "the others are packed each alone"
    assert len(products) == 4 + 5 + 1 and held.isfinite().all()


def test_with_biases(products):
    model = tiny.build("qwen2")
    assert model.model.layers[0].self_attn.k_proj.bias is not None
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            nn.init.normal_(getattr(layer.self_attn, name).bias)
    expected = logits(model)
    packing.pack_weights(model, has_small=True)
    torch.testing.assert_close(logits(model), expected)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.bias.add_(1)
    found, num_before = logits(model), len(products)
    packing.unpack_weights(model)
    torch.testing.assert_close(found, logits(model))
    assert len(products) == num_before == 2 * (4 * 2 + 1)


def test_layers_that_read_other_inputs_are_packed_alone(plain, packed):
    """Whatever their names say: that is found out, and right before it is."""
    expected = logits(plain)
    attention = packed.model.layers[0].self_attn
    attention.k_proj.register_forward_pre_hook(lambda module, args: (args[0].clone(),))
    for _ in range(MOST_WASTED + 2):
        torch.testing.assert_close(logits(packed), expected)
    assert not is_packed(attention.q_proj)
    packed.generate(**tiny.prompts(1), **KWARGS)
    assert num_packed(packed) == 15 and attention.q_proj._parameters.held.together is None
    assert packed.model.layers[1].self_attn.q_proj._parameters.held.together is not None
    torch.testing.assert_close(logits(packed), expected)
    hs.detach(packed)
    assert have_equal_weights(packed, weights(plain))


def test_an_input_that_is_written_to_is_another_one(plain, packed):
    for one in (plain, packed):
        query = one.model.layers[0].self_attn.q_proj
        query.register_forward_hook(lambda module, args, output: (args[0].mul_(2), None)[1])
    torch.testing.assert_close(logits(packed), logits(plain))


def test_threads(plain, packed):
    """Each has its own inputs."""
    texts = [torch.randint(tiny.VOCAB, (1, 3 + num), generator=torch.Generator().manual_seed(num)) for num in range(6)]
    expected = [logits(plain, ids) for ids in texts]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(20):
            for found, like in zip(pool.map(partial(logits, packed), texts), expected, strict=True):
                torch.testing.assert_close(found, like)
    assert num_packed(packed) == 15


@pytest.mark.parametrize("names", [("q_proj", "q_proj"), ("k_proj", "v_proj")])
def test_layers_that_are_in_several_modules(model, names):
    """Of two blocks, or under two names of one."""
    first, second = (layer.self_attn for layer in model.model.layers)
    setattr(second if names[0] == names[1] else first, names[1], getattr(first, names[0]))
    expected, before = logits(model), weights(model)
    packing.pack_weights(model, has_small=True)
    torch.testing.assert_close(logits(model), expected)
    assert num_packed(model) == 14
    packing.unpack_weights(model)
    assert have_equal_weights(model, before)
