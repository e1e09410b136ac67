"""Which slots of a ragged cache each query sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from .ragged_cache import RaggedCache


class AttentionLayers:
    """What each layer of a model attends to, and the explicit masks that say so.

    Follows `transformers.masking_utils.create_masks_for_generate`: a dict of masks by layer type where the config lists
    `layer_types`, else one mask for all layers.
    """

    def __init__(self, model: PreTrainedModel):
        self.config = model.config.get_text_config(decoder=True)
        self.is_additive = self.config._attn_implementation == "eager"
        self.types: list[str] | None = getattr(self.config, "layer_types", None)
        self.window: int | None = getattr(self.config, "sliding_window", None)
        self.chunk: int | None = getattr(self.config, "attention_chunk_size", None)
        if self.types is None:
            self.windows = [self.window] * self.config.num_hidden_layers
        else:
            self.windows = [self.window if kind == "sliding_attention" else None for kind in self.types]

    def masks(self, positions: Tensor, cache: RaggedCache, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Masks for queries at `positions (batch, q)` over the slots that layers of `cache` show: `(batch, 1, q, slots)`."""
        if self.types is not None:
            return {kind: self._mask(kind, positions, cache, dtype) for kind in set(self.types)}
        if self.window is not None:
            return self._mask("sliding_attention", positions, cache, dtype)
        if self.chunk is not None:
            return self._mask("chunked_attention", positions, cache, dtype)
        return self._mask("full_attention", positions, cache, dtype)

    def _mask(self, kind: str, positions: Tensor, cache: RaggedCache, dtype: torch.dtype) -> Tensor:
        first = cache.first(self.window) if kind == "sliding_attention" else 0
        slots = torch.arange(first, cache.end, device=positions.device)
        query = positions.clamp(min=first)[:, None, :, None]  # filler has to see something, too
        visible = slots <= query
        if kind == "sliding_attention":
            visible &= slots > query - self.window
        elif kind == "chunked_attention":
            visible &= slots >= query // self.chunk * self.chunk
        return self.explicit(visible, dtype)

    def explicit(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """A boolean mask as the model's attention takes it."""
        if not self.is_additive:
            return visible
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
