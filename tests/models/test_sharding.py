"""Models whose weights are sharded: recognised, and of a known size."""

import copy

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from hf_speculative import models
from hf_speculative.models import sharding as ranks
from tests.support import tiny


@pytest.fixture
def partitioned(target, monkeypatch):
    """A model as ZeRO-3 leaves it between two forwards: no weight has an element."""
    monkeypatch.setattr(ranks, "are_several", lambda: True)
    model = copy.deepcopy(target)
    for weight in model.parameters():
        weight.ds_id, weight.ds_numel = 0, weight.numel()
        weight.data = torch.empty(0)
    return model


def test_zero_3_is_recognised_and_leaves_sizes_known(target, partitioned):
    assert models.is_sharded(partitioned) and not models.is_sharded(target)
    assert models.num_parameters(partitioned) == target.num_parameters() > 0
    assert models.cached_model.last_id(partitioned) == tiny.VOCAB - 1
    assert models.with_folded_attention(partitioned) is partitioned
    assert models.with_folded_attention(target) is not target


def test_encoders_whose_weights_are_elsewhere_are_not_the_same():
    """Sharded and offloaded weights have the address 0."""
    layers = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = BartConfig(vocab_size=61, d_model=8, **layers)
    one, other = (BartForConditionalGeneration(config).to("meta") for _ in range(2))
    assert not models.inputs._share_encoder(one, other) and models.inputs._share_encoder(one, one)
