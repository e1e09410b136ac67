"""Tiny targets with drafts made for them: MTP layers in a checkpoint, a DFlash draft, a Gemma 4 assistant.

The targets' layers write little, so that the next token follows mostly from the last one, which the drafts know.
"""

from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from hf_speculative.drafting import mtp
from tests.support import tiny

#: with dense layers in the target; the MTP layers are sparse all the same
EXPERTS = {"first_k_dense_replace": 9, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}
EXPERTS |= {"n_group": 1, "topk_group": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
MTP_TYPES = {
    "glm4_moe": tiny.GATED | EXPERTS | {"head_dim": 8},
    "deepseek_v3": tiny.GATED | EXPERTS | LATENT | {"num_key_value_heads": 4},
}


@torch.no_grad()
def hush(layers, factor: float) -> None:
    for layer in layers:
        for name, weight in layer.named_parameters():
            if {"o_proj", "down_proj"} & set(name.split(".")):
                weight.mul_(factor)


def mtp_or_skip() -> None:
    if not hasattr(mtp._mtp_class(), "forward_layer"):
        pytest.skip("transformers 5.23 or later has an MtpModel that runs layer by layer; refused by name before")


@torch.no_grad()
def with_mtp(path, model_type: str = "glm4_moe", num_mtp_layers: int = 2, attention: str = "sdpa", **config):
    """A target loaded from a checkpoint at `path` that also holds MTP layers, as the real ones do."""
    from transformers.modeling_layers import MtpModel

    config = MTP_TYPES[model_type] | config | {"num_nextn_predict_layers": num_mtp_layers}
    model = tiny.build(model_type, attention=attention, **config)
    hush(model.model.layers, 0.3)
    heads = MtpModel(model, num_mtp_layers)
    hidden = model.config.hidden_size
    for layer in heads.layers:
        for name, tensor in layer.state_dict().items():
            if ".gate." in name or ".experts." in name:  # MtpModel leaves these uninitialised
                tensor.normal_(std=0.02)
        # The embedding alone goes on, with a little of the state.
        layer.eh_proj.weight.copy_(torch.cat([torch.eye(hidden), 0.1 * torch.eye(hidden)], 1))
        hush([layer.mtp_block], 0.3)
        for weight in layer.mtp_block.self_attn.parameters():
            if weight.ndim > 1:
                weight.mul_(5.0)
    model.save_pretrained(path)
    state = load_file(path / "model.safetensors")
    first = model.config.num_hidden_layers
    for name, weight in heads.layers.state_dict().items():
        index, rest = name.split(".", 1)
        state[f"model.layers.{first + int(index)}.{rest.removeprefix('mtp_block.')}"] = weight.clone()
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    # transformers knows the MTP layers of a checkpoint by these patterns, which name the real models' layer numbers.
    patterns = [rf"model\.layers\.{first + i}\." for i in range(num_mtp_layers)]
    with patch.object(type(model), "_keys_to_ignore_on_load_unexpected", patterns):
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=attention).eval()
    model._keys_to_ignore_on_load_unexpected = patterns
    return model


GEMMA4 = tiny.GATED | {"head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
GEMMA4 |= {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA4 |= {"vocab_size_per_layer_input": tiny.VOCAB, "hidden_size_per_layer_input": 8}


@torch.no_grad()
def with_gemma4_assistant(attention: str = "sdpa", factor: float = 0.04, **config):
    """A Gemma 4 target and an assistant with its embeddings."""
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

    config = GEMMA4 | config
    model = tiny.build("gemma4_text", attention=attention, **config)
    hidden = model.config.hidden_size
    own = {"num_hidden_layers": 2, "layer_types": config["layer_types"][:2], "num_kv_shared_layers": 2}
    none = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    text_config = Gemma4TextConfig(**config | own | none)
    sizes = {"backbone_hidden_size": hidden, "tie_word_embeddings": False}
    assistant_config = Gemma4AssistantConfig(text_config=text_config, **sizes)
    # transformers 5.23.0 itself fails to build a model in which all layers share, as those of all assistants do.
    with patch.object(Gemma4TextConfig, "kv_sharing_modes", ["reuse"] * 2, create=True):
        assistant = Gemma4AssistantForCausalLM._from_config(assistant_config, attn_implementation=attention).eval()
    for layers in (model.model.layers, assistant.model.layers):
        for layer in layers:
            for name, weight in layer.named_parameters():
                if name.startswith("post_"):  # the norms after each branch
                    weight.mul_(factor)
    assistant.pre_projection.weight.copy_(torch.cat([torch.eye(hidden), 0.1 * torch.eye(hidden)], 1))
    assistant.post_projection.weight.copy_(torch.eye(hidden))
    assistant.lm_head.weight.copy_(model.lm_head.weight)
    return model, assistant


def with_dflash(block_size: int = 5, attention: str = "sdpa", steps: int = 150, first: int = 1, **config):
    """A target and a DFlash draft for it."""
    model = tiny.build("llama", attention=attention, **config)
    hush(model.model.layers, 0.2)
    return model, dflash_for(model, block_size, steps, first)


def dflash_for(model, block_size: int = 5, steps: int = 150, first: int = 1):
    """A DFlash draft that was trained on the continuations of `model` for a moment: a random one guesses nothing.

    Args:
        first: the first place of a block that predicts.
    """
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    torch.manual_seed(1)
    config = model.config.get_text_config(decoder=True)
    sizes = {"hidden_size": config.hidden_size, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "block_size": block_size}
    sizes |= {"mask_token_id": config.vocab_size - 1, "target_layer_ids": [0, 1]}
    draft_config = MuseGlimmerAssistantConfig(layer_types=["sliding_attention", "full_attention"], **sizes)
    attention = config._attn_implementation
    draft = MuseGlimmerAssistantModel._from_config(draft_config, attn_implementation=attention).eval()
    ids = torch.randint(1, config.vocab_size, (64, 3))
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    with torch.no_grad():
        hidden = model(text, output_hidden_states=True).hidden_states
    states = torch.cat([hidden[1], hidden[2]], -1)

    def loss(step: int):
        anchor = 3 + step % (text.shape[1] - 3 + first - block_size)
        block = torch.full((len(text), block_size), draft.config.mask_token_id)
        block[:, 0] = text[:, anchor]
        noise = model.get_input_embeddings()(block).detach()
        outputs = draft(noise_embeds=noise, context_hidden_states=states[:, :anchor])
        logits = model.lm_head(outputs.last_hidden_state[:, first:])
        labels = text[:, anchor + 1 : anchor + 1 + block_size - first]
        return cross_entropy(logits.flatten(0, 1), labels.flatten())

    tiny.fit(draft.parameters(), loss, steps, learning_rate=3e-3)
    return draft.requires_grad_(False)
