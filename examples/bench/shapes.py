"""Models of known shapes with random weights: real architecture classes, real dimensions, nothing to download.

The draft of such a pair is the target's own first layers, with the target's embeddings, norm and head: the same tensors, no
copy. It gets as many layers as make a pass of it read about the share of the target's weights that the named draft reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig


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
        """A config of these dimensions."""
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
