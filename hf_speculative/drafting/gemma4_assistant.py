"""Draft with a Gemma 4 assistant: a few layers that attend to the target's own keys and values.

transformers' `Gemma4AssistantForCausalLM`, asked for as `assistant_model=`. It has no cache: each step reads the embedding of
the last token, the last state and what the target has cached, from one and the same position. transformers follows its
argmax. Here a token is drawn from its processed logits, which are then its true distribution.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..interfaces import CachedModel, Drafter
from ..models import AttentionLayers, exchanged, with_folded_attention
from ..types import Batch
from .autoregressive import AutoregressiveDrafter
from .source import HeadSource


class Gemma4Assistant(AutoregressiveDrafter):
    """Drafts with an assistant that shares the target's cache.

    Args:
        model: the assistant.
        target_model: the target, whose embeddings the assistant reads.
    """

    hidden_layers = (-1,)
    state: Tensor
    looked_at: dict[str, Any]

    def __init__(self, model: PreTrainedModel, target_model: PreTrainedModel):
        self.model = with_folded_attention(exchanged(model, {}))
        # Masks for rows of their own length take the place of those that it would build itself.
        self.model.create_attention_masks = lambda inputs_embeds, masks, shared_kv_states: masks
        self.attention = AttentionLayers(model)
        self.embed = target_model.get_input_embeddings()
        config = target_model.config.get_text_config(decoder=True)
        own = config.layer_types[: config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)]
        #: the last layer of each kind that has keys and values of its own
        self.shared = {kind: index for index, kind in enumerate(own)}

    def follow(self, target: CachedModel) -> None:
        self.target = target

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            self._look_at(batch)
        newest = batch.tokens.gather(1, batch.lengths[:, None] - 1 + ahead)
        embedded = self.embed(newest.to(self.embed.weight.device))
        pairs = torch.cat([embedded, self.state.to(embedded.device)], -1)
        outputs = self.model(inputs_embeds=pairs, position_ids=self.position[:, None], use_cache=False, **self.looked_at)
        self.num_forwards += 1
        self.state = outputs.last_hidden_state
        return outputs.logits[:, -1]

    def _look_at(self, batch: Batch) -> None:
        """What stays the same for a whole round: the last state, the shared cache and the masks over it."""
        device = self.model.device
        self.position = (batch.lengths - batch.padding - 1).to(device)
        self.state = self.target.hidden_states(self.position[:, None] - 1)
        end = max(len(history) for history in batch.history) - 1
        shared = {
            kind: tuple(part[:, :, :end] for part in self.target.keys_and_values(layer)) for kind, layer in self.shared.items()
        }
        slots, last = torch.arange(end, device=device), self.position[:, None, None, None] - 1
        visible = {"full_attention": slots <= last}
        if self.attention.window is not None:
            visible["sliding_attention"] = (slots <= last) & (slots >= last - self.attention.window)
        masks = {kind: self.attention.explicit(mask, self.model.dtype) for kind, mask in visible.items()}
        self.looked_at = {"shared_kv_states": shared, "attention_mask": masks}


class Gemma4AssistantSource(HeadSource):
    method = "gemma4_assistant"
    config_fields = ("backbone_hidden_size", "use_ordered_embeddings")
    needs_ragged = True
    window = 0  # it attends to the target's cache

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config
        kinds = sorted(set(own.get_text_config(decoder=True).layer_types))
        has_kinds = {*kinds} <= {*(getattr(config, "layer_types", None) or ())}
        if has_kinds and config.hidden_size == own.backbone_hidden_size:
            return None
        return f"a Gemma 4 target of hidden size {own.backbone_hidden_size} with layers of type {', '.join(kinds)}"

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return Gemma4Assistant(self.draft_model, model)
