"""Layers that attend to the target's own cache: `draft_model=` a Gemma 4 assistant."""

from __future__ import annotations

from transformers import PreTrainedModel

from ...drafting import Gemma4Assistant
from ...interfaces import Drafter
from .given_model import HeadSource


class Gemma4AssistantSource(HeadSource):
    method = "gemma4_assistant"
    config_fields = ("backbone_hidden_size", "use_ordered_embeddings")
    needs_ragged = True

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config
        kinds = sorted(set(own.get_text_config(decoder=True).layer_types))
        if config.hidden_size == own.backbone_hidden_size and {*kinds} <= {
            *(getattr(config, "layer_types", None) or ())
        }:
            return None
        return f"a Gemma 4 target of hidden size {own.backbone_hidden_size} with layers of type {', '.join(kinds)}"

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return Gemma4Assistant(self.draft_model, model)
