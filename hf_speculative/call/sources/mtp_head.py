"""A layer of multi-token prediction in speculators' layout: `draft_model=` such a head."""

from __future__ import annotations

from transformers import PreTrainedModel

from ...drafting import RecursiveMtp
from ...interfaces import Drafter
from .given_model import HeadSource


class MtpHeadSource(HeadSource):
    method = "mtp_head"
    config_fields = ("transformer_layer_config", "num_nextn_predict_layers")

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config.get_text_config(decoder=True)
        fits = (own.hidden_size, own.vocab_size) == (config.hidden_size, config.vocab_size)
        return None if fits else f"a target of hidden size {own.hidden_size} with {own.vocab_size} token ids"

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.draft_model.config.max_draft_tokens

    def cost_of_token(self, model: PreTrainedModel) -> float:
        return 1 / model.config.get_text_config(decoder=True).num_hidden_layers

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return RecursiveMtp(self.draft_model, model)
