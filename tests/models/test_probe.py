"""Types that no test covers are tried once, on the prompt of the call."""

import copy
import inspect

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BartConfig, BartForConditionalGeneration

import hf_speculative as hs
from hf_speculative import models
from hf_speculative.hf_compat import CACHE
from hf_speculative.models import choose, probe, sharding as ranks, verified_types
from hf_speculative.models.probe import fits_ragged
from tests.architectures.check import build
from tests.support import tiny
from tests.support.plain import same_as_plain

UNKNOWN_BUT_FITTING = {"helium": tiny.GATED | {"head_dim": 8}, "smollm3": tiny.GATED, "nemotron": tiny.GATED}


@pytest.mark.parametrize("model_type", UNKNOWN_BUT_FITTING)
def test_a_type_the_tests_do_not_cover_is_tried_once(model_type, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **UNKNOWN_BUT_FITTING[model_type])).eval()
    assert model_type not in verified_types.TESTED["ragged"] and fits_ragged(model)
    monkeypatch.setattr(probe, "_deviation_from_steps", lambda *args: pytest.fail("asked twice"))
    assert fits_ragged(model)
    same_as_plain(model, tiny.prompts(2), draft_model=model)


def test_positions_from_a_cache_are_seen_by_name():
    """In half precision what they change is as small as rounding."""
    model = build("causal", "inkling_text").to(torch.bfloat16)
    assert choose(model).name == "universal" and "positions from its cache" in choose(model).reason


def test_the_probe_sees_wrong_logits(monkeypatch):
    """Its own negative control: with wrong positions for several tokens on top of a cache, a model that fits does not pass."""
    model = tiny.llama()
    monkeypatch.setitem(verified_types.TESTED, "ragged", [])
    original = model.forward

    def shifted(*args, position_ids, **kwargs):
        is_verifying = position_ids.shape[1] > 1 and kwargs[CACHE].get_seq_length() > 0
        return original(*args, position_ids=position_ids // (1 + is_verifying), **kwargs)

    shifted.__signature__ = inspect.signature(original)
    assert fits_ragged(tiny.llama())
    monkeypatch.setattr(model, "forward", shifted)
    assert not fits_ragged(model)
    assert choose(model).name == "universal" and "different logits" in choose(model).reason


def test_the_probe_compares_with_what_plain_generate_feeds():
    """Kosmos-2.5 takes positions, but its `prepare_inputs_for_generation` leaves them to the model, which shifts them."""
    model = build("image-text", "kosmos-2.5")
    assert "position_ids" in inspect.signature(model.forward).parameters and choose(model).name == "universal"
    for inputs in (tiny.prompts(1), tiny.prompts(3)):
        same_as_plain(model, inputs, draft_model=tiny.noisy_copy(model))


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


def test_what_no_numbers_tell_is_not_kept():
    """Of a model whose weights are nan for a time, with a module that no test covers."""

    class Own(torch.nn.Linear):
        pass

    model = tiny.llama()
    model.model.layers[0].mlp.up_proj.__class__ = Own
    weight = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
        with pytest.raises(ValueError, match="or of weights that are nan"):
            hs.generate(model, **tiny.prompts(1), max_new_tokens=4, draft_model="suffix")
        assert not hs.check(model)
        hs.attach(model, "suffix").generate(**tiny.prompts(1), max_new_tokens=4, draft_model=None, do_sample=False)
        hs.detach(model)
        model.lm_head.weight.copy_(weight)
    same_as_plain(model, tiny.prompts(2), draft_model=tiny.noisy_copy(model))


def test_detached_models_are_tried_again():
    """What was found is of modules that may be others now."""

    class Own(torch.nn.Linear):
        scales = False

        def forward(self, input):
            return super().forward(input * input.abs().max() if self.scales else input)

    model = tiny.llama()
    for layer in model.model.layers:
        layer.mlp.up_proj.__class__ = Own
    same_as_plain(model, tiny.prompts(2), draft_model="suffix")
    Own.scales = True
    hs.detach(model)
    with pytest.raises(ValueError, match="quantise their inputs"):
        hs.generate(model, **tiny.prompts(1), max_new_tokens=4, draft_model="suffix")
