"""Models of known shapes with random weights: real architecture classes, real dimensions, nothing to download.

The draft of such a pair is the target's own first layers, with the target's embeddings, norm and head: the same tensors, no
copy. It gets as many layers as make a pass of it read about the share of the target's weights that the named draft reads.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from ..models.shallow import decoder_layers, exchanged

#: the layers through which attention and MLP write to the residual stream, by the names they have in Llama and GPT-2
OUTPUT_PROJECTIONS = ("o_proj", "down_proj", "c_proj")


@dataclass(frozen=True)
class Shape:
    """A target's architecture, and how much of it drafts.

    Attributes:
        config: fields of the config of `model_type`.
        draft_layers: the target's first layers that are the draft.
        stands_for: the pair that this approximates, and how far the draft's cost is off.
    """

    name: str
    model_type: str
    draft_layers: int
    stands_for: str
    config: dict[str, Any] = field(default_factory=dict)

    def make_config(self):
        # No end token, so that every text has the length asked for. Random weights repeat themselves under a tied head.
        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
        return AutoConfig.for_model(self.model_type, **self.config, **ends, tie_word_embeddings=False)


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,  # rotary positions hold no weights: any context can be measured
        **more,
    }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "tiny",
            "llama",
            draft_layers=1,
            stands_for="nothing: 4 layers of width 64, for tests and for trying the command",
            config=_llama(64, 128, 4, 4, 2, 512),
        ),
        Shape(
            "gpt2-xl",
            "gpt2",
            draft_layers=1,
            stands_for="GPT-2 XL with GPT-2, as in Jay Mody's post; a draft pass reads 7.2 % of the weights, GPT-2's 7.9 %",
            config={"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        ),
        Shape(
            "tinyllama-1.1b",
            "llama",
            draft_layers=2,
            stands_for="TinyLlama 1.1B with Llama-160M; a draft pass reads 14.8 % of the weights, Llama-160M's 13.3 %",
            config=_llama(2048, 5632, 22, 32, 4, 32000),
        ),
        Shape(
            "llama-8b",
            "llama",
            draft_layers=3,
            stands_for="Llama 3.1 8B with Llama 3.2 1B; a draft pass reads 15.7 % of the weights, the 1B's 16.5 %",
            config=_llama(4096, 14336, 32, 32, 8, 128256),
        ),
        Shape(
            "qwen-32b",
            "qwen3",
            draft_layers=1,
            stands_for="Qwen3 32B with Qwen3 0.6B; a draft pass reads 4.0 % of the weights, the 0.6B's 1.9 %",
            config=_llama(5120, 25600, 64, 64, 8, 151936, head_dim=128),
        ),
    )
}


def best_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it, else float32."""
    has_bf16 = device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def random_model(config, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """A model of `config` with random weights, made in `dtype` on `device`: never a second copy, on the host or elsewhere."""
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            draw(model, name, seed)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    return model


@torch.no_grad()
def draw(model: PreTrainedModel, name: str, seed: int, scale: float = 1.0) -> None:
    """Fill a weight matrix with the normal numbers that belong to its name, so that outputs have variance `scale` squared.

    The numbers are always the same: drawing again with another scale piles up no rounding and needs no saved copy.
    """
    path, _, _ = name.rpartition(".")
    module, weight = model.get_submodule(path), model.get_parameter(name)
    fan_in = 1 if isinstance(module, nn.Embedding) else weight.shape[0 if isinstance(module, Conv1D) else 1]
    index = list(dict(model.named_parameters())).index(name)
    generator = torch.Generator(weight.device).manual_seed(seed * 100_003 + index)
    weight.normal_(0.0, scale / fan_in**0.5, generator=generator)


def later_projections(model: PreTrainedModel, num_layers: int) -> list[str]:
    """Weights through which the layers after the first `num_layers` write to the residual stream."""
    path = decoder_layers(model)
    found = []
    for name, _ in model.named_parameters():
        *_, module, kind = name.split(".")
        if kind == "weight" and module in OUTPUT_PROJECTIONS and name.startswith(f"{path}."):
            layer = int(name.removeprefix(f"{path}.").split(".")[0])
            found += [name] if layer >= num_layers else []
    return found


def first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """The model that `num_layers` layers of `model` are, with its embeddings, norm and head: every tensor is shared."""
    path = decoder_layers(model)
    assert path is not None
    draft = exchanged(model, {path: model.get_submodule(path)[:num_layers]})
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    draft.config = draft.get_submodule(path.rpartition(".")[0]).config = config
    draft.generation_config = copy.deepcopy(model.generation_config)
    return draft
