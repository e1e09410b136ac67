"""speculators' MTP heads: one layer of multi-token prediction, used again for each further token (arXiv 2509.18362)."""

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from ..hf_compat import CACHE, attention_name, set_attention_name
from .eagle3_config import SpeculatorsConfig
from .layout import Layout


class MtpHeadConfig(SpeculatorsConfig):
    """Config of an MTP head, its fields by the names that speculators gives them.

    Args:
        transformer_layer_config: a config of the target's type, whose layer the head's is.
        num_nextn_predict_layers: layers; speculators knows heads of one.
        speculators_config: what speculators and vLLM read of it: the target's name and how many tokens to draft.
    """

    model_type = "mtp_head"
    layers_by_default = "qwen2"

    speculators_model_type: str = "mtp"
    speculators_version: str | None = None
    num_nextn_predict_layers: int = 1

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.num_nextn_predict_layers != 1:
            raise ValueError(f"`num_nextn_predict_layers={self.num_nextn_predict_layers}`: give a head of one layer.")

    def one_layer(self) -> PreTrainedConfig:
        """The config of a model that is this layer: in hybrids, one of those that attend to everything."""
        config = copy.deepcopy(self.transformer_layer_config)
        config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = ["full_attention"]
        return config

    def _published(self, fields: dict[str, Any]) -> dict[str, Any]:
        own = {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp", "num_nextn_predict_layers": 1}
        return super()._published(fields) | own


class MtpHead(PreTrainedModel):
    """A decoder layer of the target's type over an embedding and the state one token earlier; embeddings and head are the
    target's."""

    config: MtpHeadConfig
    _supports_sdpa = True
    _supports_attention_backend = True
    _skip_keys_device_placement = ("past_key_values",)

    def __init__(self, config: MtpHeadConfig):
        super().__init__(config)
        set_attention_name(config.transformer_layer_config, attention_name(config))
        one = config.one_layer()
        body = AutoModel.from_config(one, attn_implementation=attention_name(config))
        layer, norm = body.layers[0], type(body.norm)
        for name in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
            layer.add_module(name, norm(one.hidden_size, eps=one.rms_norm_eps))
        layer.add_module("input_proj", nn.Linear(2 * one.hidden_size, one.hidden_size, bias=False))
        self._no_split_modules = [type(layer).__name__]
        self.mtp_layers, self.rotary_emb = nn.ModuleList([layer]), body.rotary_emb
        self.post_init()

    def forward(
        self, inputs_embeds: Tensor, states: Tensor, position_ids: Tensor, attention_mask=None, past_key_values=None, **kwargs
    ) -> Tensor:
        """States `(batch, n, hidden)`, which the target's head reads, and this layer again for the token after.

        Args:
            inputs_embeds: `(batch, n, hidden)`, the tokens' embeddings.
            states: `(batch, n, hidden)` one token earlier: the target's, or those of a former call.
            position_ids: `(batch, n)`.
            attention_mask: `(batch or 1, heads or 1, n, slots)`, bool or additive; if any.
            past_key_values: a `Cache`, where keys and values are kept; `None`: they are not.
        """
        layer = self.mtp_layers[0]
        both = torch.cat([layer.token_layernorm(inputs_embeds), layer.hidden_layernorm(states)], -1)
        hidden = layer.input_proj(both)
        kwargs |= {"position_ids": position_ids, "position_embeddings": self.rotary_emb(hidden, position_ids)}
        outputs = layer(hidden, attention_mask=attention_mask, **{CACHE: past_key_values}, **kwargs)
        return layer.final_layernorm(outputs[0] if isinstance(outputs, tuple) else outputs)


class SpeculatorsMtpLayout(Layout):
    """speculators' (`speculators_model_type: "mtp"`): the layer's tensors alone."""

    name = "speculators"
    speculators_types = ("mtp",)
    models: ClassVar = {MtpHeadConfig: MtpHead}
    of_target = ("embed_tokens.", "lm_head.", "verifier_lm_head.")

    def config(self) -> MtpHeadConfig:
        return MtpHeadConfig(**self.files.settings)
