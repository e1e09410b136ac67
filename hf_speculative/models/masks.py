"""Which slots of a ragged cache each query sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..hf_compat import attention_name
from ..types import Tree

if TYPE_CHECKING:
    from .ragged_cache import RaggedCache


class AttentionLayers:
    """What each layer of a model attends to, and the explicit masks that say so.

    Follows `transformers.masking_utils.create_masks_for_generate`: a dict of masks by layer type where the config lists
    `layer_types`, else one mask for all layers.
    """

    def __init__(self, model: PreTrainedModel):
        self.config = model.config.get_text_config(decoder=True)
        self.is_additive = attention_name(self.config) == "eager"
        self.types: list[str] | None = getattr(self.config, "layer_types", None)
        self.window: int | None = getattr(self.config, "sliding_window", None)
        self.chunk: int | None = getattr(self.config, "attention_chunk_size", None)
        if self.types is None:
            self.windows = [self.window] * self.config.num_hidden_layers
        else:
            self.windows = [self.window if kind == "sliding_attention" else None for kind in self.types]

    def shape_of_keys(self) -> tuple[int, int]:
        """Heads of a layer's keys and their width, in models whose layers share them."""
        config = self.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def masks(
        self, positions: Tensor, cache: RaggedCache, dtype: torch.dtype, nodes: Nodes | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Masks for queries at `positions (batch, q)` over the slots that layers of `cache` show: `(batch, 1, q, slots)`.

        Args:
            nodes: the slots of a tree of draft tokens; without, a token's slot is its position, and it sees all before it.
        """
        if self.types is not None:
            return {kind: self._mask(kind, positions, cache, dtype, nodes) for kind in set(self.types)}
        if self.window is not None:
            return self._mask("sliding_attention", positions, cache, dtype, nodes)
        if self.chunk is not None:
            return self._mask("chunked_attention", positions, cache, dtype, nodes)
        return self._mask("full_attention", positions, cache, dtype, nodes)

    def _mask(
        self, kind: str, positions: Tensor, cache: RaggedCache, dtype: torch.dtype, nodes: Nodes | None
    ) -> Tensor:
        first = cache.first(self.window) if kind == "sliding_attention" else 0
        slots = torch.arange(first, cache.end, device=positions.device)
        query = positions[:, None, :, None]
        if first:
            query = query.clamp(min=first)  # filler has to see something, too
        visible = slots <= query
        if nodes is not None:
            visible, slots = nodes.visible(visible, slots), nodes.key_positions(slots)
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


class Nodes:
    """Where a pass finds a tree of draft tokens: side by side behind each row's own, at positions that are their depths.

    Args:
        first: `(batch,)` slot of each row's first node.
        num_columns: of the pass, the last of which are the last nodes.
    """

    def __init__(self, tree: Tree, first: Tensor, num_columns: int):
        num_nodes = tree.parents.shape[1]
        self.first = first[:, None]
        self.slots = self.first + torch.arange(num_nodes, device=first.device)
        self.slot_positions = self.first - 1 + tree.depths[:, 1:].to(first.device)
        #: `(batch, columns, n)`: which nodes each column sees; those before the first node see none
        self.seen = functional.pad(tree.ancestors, (0, 0, max(0, num_columns - num_nodes), 0))[:, -num_columns:]
        self.seen = self.seen.to(first.device)

    def query_positions(self, positions: Tensor) -> Tensor:
        """`(batch, columns)`, from what they would be in a chain."""
        num_nodes = min(self.slots.shape[1], positions.shape[1])
        before = positions.shape[1] - num_nodes
        return torch.cat([positions[:, :before], self.slot_positions[:, self.slots.shape[1] - num_nodes :]], 1)

    def key_positions(self, slots: Tensor) -> Tensor:
        """Of what stands in `slots (n,)`: `(batch, 1, 1, n)`."""
        of_rows = slots.expand(len(self.first), -1)
        return of_rows.scatter(1, self.slots - slots[0], self.slot_positions)[:, None, None]

    def visible(self, visible: Tensor, slots: Tensor) -> Tensor:
        """`visible (batch, 1, columns, n)`, from what it would be in a chain."""
        index = (self.slots - slots[0])[:, None, None].expand(-1, -1, self.seen.shape[1], -1)
        return (visible & (slots < self.first[:, None, None])).scatter(3, index, self.seen[:, None])
