"""Which order of packed weights is fastest is timed once a machine, and the same for all of its processes."""

import json

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from hf_speculative.models import artifacts, matmul_autotune, packing
from hf_speculative.models.packed_layers import (
    BLOCKED,
    TRANSPOSED,
    dtypes,
    linear,
    order_of,
    orders_of,
    packed_weight,
    unsupported_reason,
)
from hf_speculative.models.packed_units import Unit
from tests.support import tiny
from tests.support.packed import num_packed

pytestmark = [
    pytest.mark.skipif(not dtypes(), reason="nothing can be packed on this machine"),
    pytest.mark.measures,
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(artifacts.FOLDER, str(tmp_path / "passes"))
    monkeypatch.setattr(matmul_autotune, "_known", {})
    return tmp_path / "passes"


@pytest.mark.parametrize("dtype", dtypes())
@pytest.mark.parametrize("make", [nn.Linear, lambda num_in, num_out: Conv1D(num_out, num_in)], ids=["Linear", "Conv1D"])
def test_every_order_gives_the_layer_s_product_and_its_weight(make, dtype):
    layer = make(24, 40).to(dtype)
    with torch.no_grad():
        for order in orders_of(dtype):
            packed, input = packed_weight([layer], order), torch.randn(3, 5, 24).to(dtype)
            assert packed.shape == (40, 24) and order_of(packed) == order
            torch.testing.assert_close(linear(input, packed, layer.bias), layer(input))
            before = layer.weight.clone()
            layer.weight.zero_()
            assert torch.equal(packed.to_dense() if make is nn.Linear else packed.to_dense().t(), before)
            layer.weight.copy_(before)
    assert set(orders_of(torch.bfloat16)) == {BLOCKED}


def test_timed_once(folder, monkeypatch):
    model = tiny.llama()
    packing.pack_weights(model, only_if_faster=False)
    known = dict(matmul_autotune._known)
    assert len(known) == 4 + 1, "queries, keys and values; output; two that widen; one that narrows; the head"
    assert all(second > 0 for seconds in known.values() for of_order in seconds.values() for second in of_order)
    assert json.loads(matmul_autotune.note().read_text()) == known
    monkeypatch.setattr(matmul_autotune, "_known", {})  # as in another process
    monkeypatch.setattr(matmul_autotune, "_time", lambda unit: pytest.fail("it was noted"))
    packing.pack_weights(tiny.llama(seed=1), only_if_faster=False)
    assert matmul_autotune._known == known
    assert [path.suffix for path in folder.iterdir() if path != matmul_autotune.note()] in ([], [".lock"])


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(artifacts.FOLDER, str(tmp_path / "file" / "passes"))
    model = tiny.llama()
    packing.pack_weights(model, only_if_faster=False)
    assert packing.are_packed(model)


def test_a_layer_without_outputs_is_left_alone():
    layer = nn.Linear(4, 1, bias=False)
    layer.weight = nn.Parameter(torch.empty(0, 4))
    assert unsupported_reason(layer, is_shared=False) == "without a plain weight"


DAMAGED = ("", "{", "[]", "null")


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_note_is_written_anew(text):
    unit = Unit((nn.Linear(16, 16),))
    matmul_autotune.note().parent.mkdir()
    matmul_autotune.note().write_text(text.replace("%s", matmul_autotune.kind(unit).replace('"', '\\"')))
    found = matmul_autotune.seconds_of(unit)
    assert json.loads(matmul_autotune.note().read_text()) == {matmul_autotune.kind(unit): found}
    assert matmul_autotune.fastest(found) in orders_of(torch.float32)


@pytest.mark.parametrize("dtype", dtypes())
def test_what_is_faster_plain_stays_so_in_compiled_passes_too_but_where_it_is_to_be_packed(dtype, monkeypatch):
    monkeypatch.setattr(packing, "seconds_of", lambda unit: {"plain": [1.0, 1.0], BLOCKED: [2.0, 1.0]})
    model = tiny.llama().to(dtype)
    for is_compiled in (False, True):
        packing.pack_weights(model, is_compiled=is_compiled)
        # In half precision plain products are those of oneDNN, too, and the clock is not asked.
        assert packing.are_packed(model) == (dtype != torch.float32)
        packing.unpack_weights(model)
    packing.pack_weights(model, only_if_faster=False)
    assert packing.are_packed(model)


def test_orders_differ_by_layer(monkeypatch):
    """Each kind of layer lies as it is fastest, what a call packs again as before."""
    if TRANSPOSED not in orders_of(torch.float32):
        pytest.skip("torch has no MKL here")

    def seconds(unit):
        is_head = unit.layers[0].out_features == tiny.VOCAB
        return {"plain": [3.0, 3.0], BLOCKED: [2.0, 1.0], TRANSPOSED: [1.0, 2.5 - is_head]}

    monkeypatch.setattr(packing, "seconds_of", seconds)
    model, ids = tiny.llama(), tiny.prompts(2)["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        packing.pack_weights(model)
        for _ in range(2):
            mlp = model.model.layers[0].mlp
            orders = [order_of(layer._parameters.packed) for layer in (mlp.up_proj, mlp.down_proj, model.lm_head)]
            assert orders == [BLOCKED, BLOCKED, TRANSPOSED]
            torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=0.02)
            assert "1 of them transposed" in packing.describe(model)
            model.lm_head.weight.sum()
            mlp.up_proj.weight.sum()
            packing.renew(model)


def test_another_choice_later_leaves_nothing_behind(monkeypatch):
    """What was chosen for eager passes and is not for compiled ones is plain again, in the end as well."""
    model = tiny.llama()
    for reach, fast in enumerate((0.1, 5.0)):
        monkeypatch.setattr(packing, "seconds_of", lambda unit, fast=fast: {"plain": [1.0, 1.0], BLOCKED: [fast, fast]})
        packing.pack_weights(model, is_compiled=bool(reach))
        assert num_packed(model) == (15, 0)[reach]
    packing.pack_weights(model, only_if_faster=False)
    assert num_packed(model) == 15, "what is to be packed is, whatever was chosen before"
    packing.pack_weights(model)
    assert num_packed(model) == 15
    packing.unpack_weights(model)
    assert num_packed(model) == 0
