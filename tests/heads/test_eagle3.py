"""EAGLE-3 heads compute what the code that they were trained with computes."""

import pytest
import torch

from hf_speculative.heads import load_head
from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.heads.eagle3_config import Eagle3Config
from tests.support import heads, tiny

PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"norm_before_fc": True, "fc_norm": True}, "`norm_before_fc` and `fc_norm` are both true"),
        ({"transformer_layer_config": {"model_type": "gpt2"}}, "`transformer_layer_config.model_type='gpt2'`"),
        (
            {"transformer_layer_config": {"model_type": "llama", "rope_parameters": PARTIAL}},
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
