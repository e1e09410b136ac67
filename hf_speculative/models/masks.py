"""Which slots of a ragged cache each query sees."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import CacheLayerMixin, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..hf_compat import attention_name, cache_argument
from ..types import Tree
from .positions import Columns, position_keyword
from .ragged_cache import RaggedCache, for_model

#: the attention of layers by their type
ATTENTION_TYPES = {kind: kind for kind in ("full_attention", "sliding_attention", "chunked_attention")}
ATTENTION_TYPES |= {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
#: layers with recurrent states
RECURRENT_TYPES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether some layers have recurrent states."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    return not RECURRENT_TYPES.isdisjoint(kinds)


class Nodes:
    """The slots of a tree of draft tokens: side by side behind the row's own tokens, at positions by depth.

    Args:
        first: `(batch,)` slot of each row's first node; behind all slots of a pass that has no tree.
        depths: `(batch, n)` of the nodes, 1 for one that follows the row's newest token; n is at least 1.
        ancestors: `(batch, n, n)` bool, node j is on the path to node i, or is i itself.
    """

    def __init__(self, first: Tensor, depths: Tensor, ancestors: Tensor):
        self.first, self.depths, self.ancestors = first[:, None], depths, ancestors

    def positions(self, slots: Tensor) -> Tensor:
        """The positions of tokens in `slots (batch or 1, m)`: `(batch, m)`."""
        nodes, are_nodes = self._nodes(slots)
        depths = self.depths.gather(1, nodes)
        return torch.where(are_nodes, self.first - 1 + depths, slots)

    def visible(self, queries: Tensor, slots: Tensor) -> Tensor:
        """`(batch, q, m)` bool: which of `slots (batch or 1, m)` the columns in slots `queries (batch, q)` see."""
        (columns, are_columns), (nodes, are_nodes) = self._nodes(queries), self._nodes(slots)
        rows = torch.arange(columns.shape[0], device=columns.device)[:, None, None]
        seen = self.ancestors[rows, columns[:, :, None], nodes[:, None]] & are_columns[:, :, None]
        return torch.where(are_nodes[:, None], seen, slots[:, None] <= queries[:, :, None])

    def among(self, queries: Tensor, is_filler: Tensor | None) -> Tensor:
        """`(batch, q, q)` bool: which columns each of those in slots `queries (batch, q)` follows, itself among them."""
        follows = self.visible(queries, queries)
        return follows if is_filler is None else follows & ~is_filler[:, None]

    def _nodes(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The node in each of `slots (batch or 1, m)`, and whether there is one; each `(batch, m)`."""
        nodes, last = slots - self.first, self.depths.shape[1] - 1
        return nodes.clamp(0, last), (nodes >= 0) & (nodes <= last)


class AttentionLayers:
    """The attention of each layer of a model, and the explicit masks for it.

    Follows `transformers.masking_utils.create_masks_for_generate`: a dict of masks by layer type where the config lists
    `layer_types`, else one mask for all layers.
    """

    def __init__(self, model: PreTrainedModel):
        self.config, self.dtype = model.config.get_text_config(decoder=True), model.dtype
        self.is_additive = attention_name(self.config) == "eager"
        self.types: list[str] | None = getattr(self.config, "layer_types", None)
        self.window: int | None = getattr(self.config, "sliding_window", None)
        self.chunk: int | None = getattr(self.config, "attention_chunk_size", None)
        kind = "full_attention" if self.chunk is None else "chunked_attention"
        kinds = self.types or [kind if self.window is None else "sliding_attention"] * self.config.num_hidden_layers
        self.kinds = {ATTENTION_TYPES[kind] for kind in kinds if kind in ATTENTION_TYPES}
        self.windows = [self.window if "sliding" in kind else None for kind in kinds]
        self.are_recurrent, parameters = is_recurrent(model), signature(model.forward).parameters
        #: keywords of the cache and of positions, and whether the model can leave out the logits of some columns
        self.cache_name, self.keeps_logits = cache_argument(parameters), "logits_to_keep" in parameters
        self.positions_name, self.columns = position_keyword(model), Columns(model)
        #: before the keywords of ids and masks
        self.prefix = "decoder_" if model.config.is_encoder_decoder else ""
        layers = DynamicCache(config=self.config).layers if self.are_recurrent else []
        self.num_states = [getattr(layer, "number_of_states", 0) for layer in layers]
        self.attends = [isinstance(layer, CacheLayerMixin) for layer in layers]
        #: whether any layer attends
        self.attend = not self.attends or any(self.attends)

    def new_cache(self) -> RaggedCache:
        return RaggedCache(self.windows, self.num_states, self.attends)

    def run(self, forward: Callable, cache, ids: Tensor, positions: Tensor, mask, **asked) -> Any:
        """The outputs of a model's `forward` over columns `(batch, q)`, which `cache.recurrence` has entered, and leaves.

        Args:
            cache: a `RaggedCache`, or a `TracedCache`.
            mask: what the model takes, such as `masks` gives.
            asked: what else the model is given.
        """
        given = {self.cache_name: for_model(cache)} | asked
        given |= {f"{self.prefix}input_ids": ids, f"{self.prefix}attention_mask": mask}
        if self.attend and self.positions_name is not None:
            given[self.positions_name] = positions
        outputs = forward(use_cache=True, return_dict=True, **given)
        cache.recurrence.leave()
        return outputs

    def encoded(self, width: int, *of_encoder: Tensor) -> dict[str, Any]:
        """What a decoder is given of its encoder, for a pass of `width` columns; nothing where there is none.

        The mask has four dimensions: transformers takes that as it is, and would look whether another one hides anything.

        Args:
            of_encoder: its states `(batch, n, hidden)`, and which of them to attend to, `(batch, n)`.
        """
        if not of_encoder:
            return {}
        states, mask = of_encoder
        explicit = self.explicit(mask[:, None, None].bool().expand(-1, -1, width, -1).contiguous(), states.dtype)
        return {"encoder_outputs": BaseModelOutput(last_hidden_state=states), "attention_mask": explicit}

    def need_no_mask(self, starts: Sequence[int], ends: Sequence[int]) -> bool:
        """Whether rows that are read from `starts` to `ends` need no mask: whole prompts of one length, without filler.

        It would be quadratic in their length.
        """
        is_causal = attention_name(self.config) == "sdpa" and self.kinds == {"full_attention"}
        return is_causal and not any(starts) and len({*ends}) == 1

    def masks(self, queries: Tensor, cache: RaggedCache, nodes: Nodes | None = None, is_filler: Tensor | None = None) -> Any:
        """Masks for columns in slots `queries (batch, q)` over the slots that layers of `cache` show: `(batch, 1, q, slots)`.

        Recurrent layers read one over the columns instead, `(batch, q)`, or none.

        Args:
            nodes: the slots of a tree of draft tokens; without, a token's slot is its position, and it sees all before it.
            is_filler: `(batch, q)` bool, if any column is filler.
        """
        of_columns = None if is_filler is None else ~is_filler
        if not self.attend:
            return of_columns
        masks: dict[str, Tensor | None] = {kind: self._mask(kind, queries, cache, nodes) for kind in self.kinds}
        if self.types is None:
            (mask,) = masks.values()
            return mask
        return masks | {"linear_attention": of_columns, "conv": of_columns} if self.are_recurrent else masks

    def _mask(self, kind: str, queries: Tensor, cache: RaggedCache, nodes: Nodes | None) -> Tensor:
        first = cache.first(self.window) if kind == "sliding_attention" else 0
        slots = torch.arange(first, cache.end, device=queries.device)
        if first:
            queries = queries.clamp(min=first)  # a softmax over nothing would be NaN, for filler as well
        if nodes is None:
            query, key = queries[:, None, :, None], slots
            visible = key <= query
        else:
            query, key = nodes.positions(queries)[:, None, :, None], nodes.positions(slots[None])[:, None, None]
            visible = nodes.visible(queries, slots[None])[:, None]
        if kind == "sliding_attention":
            visible = visible & (key > query - self.window)
        elif kind == "chunked_attention":
            visible = visible & (key >= query // self.chunk * self.chunk)
        return self.explicit(visible, self.dtype)

    def of_block(self, visible: Callable[[str], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Masks by layer type, of what a layer of each type sees."""
        assert self.types is not None
        return {kind: self.explicit(visible(kind), dtype) for kind in {*self.types}}

    def explicit(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a boolean mask to the form that the model's attention takes."""
        if not self.is_additive:
            return visible
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def depths_of_keys(end: int, nodes: Nodes | None, device: torch.device) -> Tensor:
    """Columns from each row's start, of what is in slots `[0, end)`: `(batch or 1, slots)`."""
    slots = torch.arange(end, device=device)[None]
    return slots if nodes is None else nodes.positions(slots)


def nodes_of(tree: Tree, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `Nodes` for a `tree` in the slots from `first (batch,)` on."""
    return first, tree.depths[:, 1:].to(first.device).contiguous(), tree.ancestors.to(first.device)


def no_nodes(num_rows: int, end: int, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `Nodes` for a chain in slots `[0, end)`: one node behind them all."""
    depths = torch.ones(num_rows, 1, dtype=torch.long, device=device)
    return end * depths[:, 0], depths, torch.ones(num_rows, 1, 1, dtype=torch.bool, device=device)
