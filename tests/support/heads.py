"""Draft heads for the tests: the fixtures in tests/heads/fixtures, and random ones made for tiny targets."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.heads.eagle3_config import Eagle3Config
from tests.support import tiny

FIXTURES = Path(__file__).parents[1] / "heads" / "fixtures"
EAGLE3 = sorted(folder.name for folder in FIXTURES.glob("eagle3_*"))


def expected_of(name: str) -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / name / "expected.safetensors")


def target_for(head: Eagle3Model, embeddings: torch.Tensor, num_layers: int = 8) -> LlamaForCausalLM:
    """A random Llama that a fixture's head fits, with these embeddings."""
    torch.manual_seed(0)
    size, vocab_size = embeddings.shape[1], embeddings.shape[0]
    model = LlamaForCausalLM(
        LlamaConfig(
            **tiny.GATED | {"vocab_size": vocab_size, "hidden_size": size, "num_hidden_layers": num_layers},
        )
    ).eval()
    tiny._spread(model)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(embeddings)
    return model


@torch.no_grad()
def eagle3(target, seed: int = 0, kind: str = "llama", draft_vocab: int | None = None, hidden: int = 32, **fields):
    """A random head for `target` that agrees with it about some tokens: with its embeddings and, nearly, its head.

    Args:
        kind: type of its layers.
        draft_vocab: tokens that it can propose, spread over the target's vocabulary; by default all.
        hidden: its width.
        fields: of its config; `layers`, of its layers' config.
    """
    torch.manual_seed(seed)
    own = target.config.get_text_config(decoder=True)
    layers = {
        "model_type": kind,
        "vocab_size": own.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "pad_token_id": None,
        **fields.pop("layers", {}),
    }
    fields = {"eagle_aux_hidden_state_layer_ids": [0, 1, own.num_hidden_layers], **fields}
    config = Eagle3Config(
        transformer_layer_config=layers,
        draft_vocab_size=draft_vocab or own.vocab_size,
        has_embed_tokens=hidden != own.hidden_size or fields.get("speculators_model_type") == "peagle",
        target_hidden_size=None if hidden == own.hidden_size else own.hidden_size,
        **fields,
    )
    config._attn_implementation = own._attn_implementation
    head = tiny._spread(Eagle3Model(config).eval())
    if head.d2t is not None:
        ids = torch.randperm(own.vocab_size)[:draft_vocab].sort().values
        head.d2t.copy_(ids - torch.arange(draft_vocab))
        head.t2d[ids] = True
    if head.config.is_parallel:
        head.mask_hidden.normal_()
    if head.embed_tokens is not None and hidden == own.hidden_size:
        head.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    if hidden == own.hidden_size:
        # The newest token's state at the last layer is the target's own guess; it goes through to a head like the target's.
        head.fc.weight.mul_(0.05)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        for layer in head.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        ids = slice(None) if head.d2t is None else head.t2d
        head.lm_head.weight.copy_(target.get_output_embeddings().weight[ids])
    return head
