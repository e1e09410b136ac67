"""A block-diffusion head that was trained for the target: `draft_model=` a DFlash draft."""

from __future__ import annotations

from transformers import PreTrainedModel

from ...drafting import DFlash
from ...interfaces import Drafter
from ..source import PreparedCall
from .given_model import HeadSource


class DFlashSource(HeadSource):
    method = "dflash"
    config_fields = ("target_layer_ids", "block_size", "mask_token_id")

    def why_not(self, config) -> str | None:
        own = self.draft_model.config
        layers = max(own.target_layer_ids)
        fits = layers < config.num_hidden_layers and own.hidden_size == config.hidden_size
        return None if fits else f"a target of hidden size {own.hidden_size} with more than {layers} layers"

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.draft_model.config.block_size - 1

    def drafter(self, call: PreparedCall) -> Drafter:
        return DFlash(self.draft_model, call.model)
