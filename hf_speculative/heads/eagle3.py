"""EAGLE-3 (arXiv 2503.01840) and P-EAGLE (arXiv 2602.01469): a layer or a few that go on from the target's states.

What a position reads is a pair: a token, and the state one token earlier. That state is the target's, fused from several of its
layers, and beyond what the target has read it is the head's own. Names of fields and tensors are those of speculators, so that
what is saved here is a folder that speculators and vLLM read.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..hf_compat import CACHE, attention_name, layers as modules, set_attention_name
from .eagle3_config import Eagle3Config
from .layout import over_target

#: by the type of layers, transformers' classes of a layer, a norm and rotary embeddings
KINDS = {
    "llama": (modules.LlamaDecoderLayer, modules.LlamaRMSNorm, modules.LlamaRotaryEmbedding),
    "qwen3": (modules.Qwen3DecoderLayer, modules.Qwen3RMSNorm, modules.Qwen3RotaryEmbedding),
}


class FirstLayer(modules.GradientCheckpointingLayer):
    """A decoder layer whose attention reads a token's embedding beside a state."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        layers = config.transformer_layer_config
        layer, norm, _ = KINDS[layers.model_type]
        ordinary = layer(layers, 0)
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = norm(layers.hidden_size, eps=layers.rms_norm_eps)
        self.input_layernorm = ordinary.input_layernorm
        self.self_attn = ordinary.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * narrow.in_features, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self.post_attention_layernorm = ordinary.post_attention_layernorm
        self.mlp = ordinary.mlp

    def forward(self, states: Tensor, inputs_embeds: Tensor, **kwargs) -> Tensor:
        normed = self.hidden_norm(states)
        pairs = torch.cat([self.input_layernorm(inputs_embeds), normed], -1)
        attended, _ = self.self_attn(hidden_states=pairs, **kwargs)
        states = (normed if self.norm_before_residual else states) + attended
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Model(PreTrainedModel):
    """An EAGLE-3 head: `fuse` the target's states, `forward` for its own, `logits` over its vocabulary.

    Attributes:
        embed_tokens: embeddings of its own, over the target's vocabulary, if it has some.
        d2t: `(draft vocabulary,)` int64: draft token i is the target's `i + d2t[i]`; `None` where the vocabularies are one.
        t2d: `(target vocabulary,)` bool: the target's tokens that have a draft token; `None` where the vocabularies are one.
    """

    main_input_name = "inputs_embeds"
    supports_gradient_checkpointing = True
    _no_split_modules = ["FirstLayer", "LlamaDecoderLayer", "Qwen3DecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        layers = config.transformer_layer_config
        set_attention_name(layers, attention_name(config))  # transformers leaves that to models inside
        (layer, norm, rotary), size, eps = KINDS[layers.model_type], layers.hidden_size, layers.rms_norm_eps
        width = config.num_states * config.state_size
        self.embed_tokens = nn.Embedding(layers.vocab_size, size) if config.has_embed_tokens else None
        self.input_norm = norm(width, eps=eps) if config.norm_before_fc else None
        norms = (norm(config.state_size, eps=eps) for _ in range(config.num_states))
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(width, size, bias=False)
        ordinary = (layer(layers, index) for index in range(1, layers.num_hidden_layers))
        self.layers = nn.ModuleList([FirstLayer(config), *ordinary])
        self.rotary_emb = rotary(layers)
        self.norm = norm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        if config.is_parallel:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, width))
        has_own_ids = config.has_own_ids
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long) if has_own_ids else None)
        self.register_buffer("t2d", torch.zeros(layers.vocab_size, dtype=torch.bool) if has_own_ids else None)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module | None:
        return self.embed_tokens

    def fuse(self, target_states: Tensor) -> Tensor:
        """States `(batch, n, hidden)` to go on from, of the target's `(batch, n, states * width)`, side by side."""
        if self.input_norm is not None:
            target_states = self.input_norm(target_states)
        if self.fc_norm is not None:
            parts = target_states.chunk(len(self.fc_norm), -1)
            target_states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(target_states)

    def forward(
        self, inputs_embeds: Tensor, states: Tensor, position_ids: Tensor, attention_mask=None, past_key_values=None, **kwargs
    ) -> Tensor:
        """The head's own states `(batch, n, hidden)`, each of a token and the state one token earlier.

        Args:
            inputs_embeds: `(batch, n, hidden)`, the tokens' embeddings.
            states: `(batch, n, hidden)`, of `fuse` or of a former call.
            position_ids: `(batch, n)`.
            attention_mask: `(batch or 1, heads or 1, n, slots)`, bool or additive, or by layer type a dict of these; if any.
            past_key_values: a `Cache`, where keys and values are kept; `None`: they are not.
        """
        kwargs |= {"position_ids": position_ids, "position_embeddings": self.rotary_emb(states, position_ids)}
        types = getattr(self.config.transformer_layer_config, "layer_types", None) or []
        for index, layer in enumerate(self.layers):
            mask = attention_mask[types[index]] if isinstance(attention_mask, dict) else attention_mask
            first = (inputs_embeds,) if index == 0 else ()
            states = layer(states, *first, attention_mask=mask, **{CACHE: past_key_values}, **kwargs)
        return self.norm(states) if self.config.norm_output else states

    def logits(self, states: Tensor) -> Tensor:
        """`(..., draft vocabulary)` of its own `states (..., hidden)`."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    def over_target(self, logits: Tensor) -> Tensor:
        """`logits (..., draft vocabulary)` by the target's ids, `(..., target vocabulary)`: -inf where no draft token is."""
        return logits if self.d2t is None else over_target(logits, self.d2t, len(self.t2d))

    def of_target(self, tokens: Tensor) -> Tensor:
        """The target's ids of its own `tokens`, of any shape."""
        return tokens if self.d2t is None else tokens + self.d2t[tokens]
