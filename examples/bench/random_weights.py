"""Models with random weights, and the target's first layers as its draft."""

from __future__ import annotations

import copy

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoModelForCausalLM, Conv1D, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from hf_speculative.models.shallow import decoder_layers, exchanged

#: the layers through which attention and MLP write to the residual stream, by the names they have in Llama and GPT-2
OUTPUT_PROJECTIONS = ("o_proj", "down_proj", "c_proj")


def best_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where torch multiplies it fast, else float32."""
    has_bf16 = device.type == "cuda" or "AVX512" in torch.backends.cpu.get_cpu_capability()
    return torch.bfloat16 if has_bf16 else torch.float32


def random_model(config, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """A model of `config` with random weights, made in `dtype` on `device`: never a second copy, on the host or elsewhere."""
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    fill(model, seed)
    return model


@torch.no_grad()
def fill(model: PreTrainedModel, seed: int = 0) -> None:
    """Random weight matrices, norms that change nothing, no biases."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            draw(model, name, seed)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)


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


def numbered_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are their own ids, for models that have learned no text."""
    words = WordLevel({str(token): token for token in range(vocab_size)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="0", pad_token="0")
