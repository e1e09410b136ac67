"""EAGLE-3 heads compute what the code that they were trained with computes."""

import pytest
import torch
from torch.nn.functional import embedding
from transformers import DynamicCache

from hf_speculative.heads import load_head
from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.heads.eagle3_config import Eagle3Config, default_layers
from tests.support import heads, tiny

CLOSE = {"rtol": 0, "atol": 1e-5}


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [name for name in heads.EAGLE3 if "speculators" in name])
def test_training_time_test(name, attention):
    """Own states of all positions at once, each position seeing its own former ones: the mask is the caller's."""
    head, expected = load_head(heads.FIXTURES / name, attn_implementation=attention), heads.expected_of(name)
    tokens, num = expected["shifted_tokens"], expected["shifted_tokens"].shape[1]
    embeddings = expected["verifier_embed_tokens.weight"]
    states, cache = head.fuse(expected["aux_hidden"]), DynamicCache()
    before, own = torch.ones(num, num).tril().bool(), torch.eye(num).bool()
    for step in range(3):
        fed = torch.cat([tokens[:, step:], tokens[:, :step]], 1)
        visible = torch.cat([before, *[own] * step], 1)[None, None]
        mask = visible if attention == "sdpa" else torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
        positions = torch.arange(num)[None] + 1 + step
        states = head(embedding(fed, embeddings), states, positions, mask, cache)
        found = head.logits(states)[0, : num - step]
        torch.testing.assert_close(found, expected[f"ttt{step}_logits"][: num - step], **CLOSE)


@torch.no_grad()
def test_logits_by_the_targets_ids():
    head = load_head(heads.FIXTURES / "eagle3_safeailab")
    states = torch.randn(2, 3, 32)
    found, own = head.over_target(head.logits(states)), head.logits(states)
    ids = torch.arange(24) + head.d2t
    assert found.shape == (2, 3, 64) and found[..., ids].equal(own)
    assert found[..., ~head.t2d].eq(-torch.inf).all() and head.t2d.sum() == 24
    whole = heads.eagle3(tiny.llama())
    logits = whole.logits(states)
    assert whole.d2t is None and whole.over_target(logits) is logits


def test_which_states_are_read():
    assert default_layers(32) == (2, 16, 29)
    assert Eagle3Config(eagle_aux_hidden_state_layer_ids=None).layers_read(32) == (2, 16, 29)
    assert Eagle3Config(eagle_aux_hidden_state_layer_ids=[1, 5]).layers_read(32) == (1, 5)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"norm_before_fc": True, "fc_norm": True}, "`norm_before_fc` and `fc_norm` are both true"),
        ({"transformer_layer_config": {"model_type": "gpt2"}}, "`transformer_layer_config.model_type='gpt2'`"),
        (
            {
                "transformer_layer_config": {
                    "model_type": "llama",
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                }
            },
            "`partial_rotary_factor=0.5`",
        ),
        ({"speculators_model_type": "peagle"}, "needs `mask_token_id`"),
    ],
)
def test_configs_that_cannot_be_run(fields, message):
    with pytest.raises(ValueError, match=message):
        Eagle3Config(**fields)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 asks for it
@torch.no_grad()
def test_it_is_a_model_like_others(tmp_path):
    """Saved, loaded by its class and by name, in another type, adapted."""
    from peft import LoraConfig, get_peft_model

    head = heads.eagle3(tiny.llama(), draft_vocab=20, norm_before_residual=True)
    head.save_pretrained(tmp_path)
    config = Eagle3Config.from_pretrained(tmp_path)
    assert config.norm_before_residual and config.transformer_layer_config.model_type == "llama"
    for found in (Eagle3Model.from_pretrained(tmp_path), load_head(tmp_path)):
        assert found.state_dict().keys() == head.state_dict().keys() and found.embed_tokens is None
        assert all(tensor.equal(head.state_dict()[name]) for name, tensor in found.state_dict().items())
        assert found.rotary_emb.inv_freq.equal(head.rotary_emb.inv_freq)
    half = load_head(tmp_path, dtype=torch.bfloat16, device_map="cpu")
    assert half.fc.weight.dtype == torch.bfloat16 and half.d2t.equal(head.d2t) and half.t2d.dtype == torch.bool
    adapted = get_peft_model(half, LoraConfig(target_modules=["q_proj"], r=2))
    assert adapted.get_base_model().layers[0].self_attn.q_proj.r


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")  # by a name of 5.23's
def test_gradients_through_checkpoints():
    head = heads.eagle3(tiny.llama()).train()
    inputs = (
        torch.randn(1, 4, 32),
        torch.randn(1, 4, 32),
        torch.arange(4)[None],
        torch.ones(4, 4).tril().bool()[None, None],
    )
    gradients = []
    for checkpoints in (False, True):
        if checkpoints:
            head.gradient_checkpointing_enable()
        head.zero_grad()
        head.logits(head(*inputs)).square().sum().backward()
        gradients.append(head.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(*gradients)
