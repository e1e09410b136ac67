"""A Llama-type model as a file that llama.cpp reads (GGUF, github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def token_text(token: int) -> str:
    """What the file says that a token reads: its id. So texts can be read as ids."""
    return f"{token},"


def tokens_of(text: str) -> list[int]:
    """The tokens of a text that a file's model wrote."""
    return [int(token) for token in text.split(",")[:-1]]


def write(model: PreTrainedModel, path: Path) -> None:
    """Writes `model`, in its own type of numbers, with a tokenizer in name only: `token_text`.

    Raises:
        ValueError: it is of another type than Llama, or stretches its positions.
    """
    import gguf

    config = model.config
    if config.model_type != "llama":
        raise ValueError(f"llama.cpp is measured with Llama-type models, not with {type(model).__name__}.")
    if (kind := config.rope_parameters["rope_type"]) != "default":
        raise ValueError(f"llama.cpp is measured with plain rotary positions, not with those of type {kind!r}.")
    vocabulary = range(config.vocab_size)
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token_text(token) for token in vocabulary])
    writer.add_token_scores([0.0 for _ in vocabulary])
    writer.add_token_types([gguf.TokenType.NORMAL for _ in vocabulary])
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    of_queries, of_keys = config.num_attention_heads, config.num_key_value_heads
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".q_proj." in name or ".k_proj." in name:
            tensor = _interleaved(tensor, of_queries if ".q_proj." in name else of_keys)
        _add(writer, names.get_name(name, try_suffixes=(".weight", ".bias")), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """llama.cpp rotates neighbours, transformers the halves of a head."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _add(writer, name: str | None, tensor: Tensor) -> None:
    import gguf
    import torch

    assert name is not None  # all of a Llama's weights have one
    if tensor.ndim == 1:  # norms, which llama.cpp wants in float32
        tensor = tensor.float()
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # which numpy does not know
        as_bytes = tensor.view(torch.uint8).numpy()
        writer.add_tensor(name, as_bytes, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())
