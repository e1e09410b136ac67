"""Multi-token prediction heads guess: one layer a draft token, fed with what the layer before it, or the target, computed.

DeepSeek-V3 (arXiv 2412.19437, section 2.2); `use_mtp=True` in transformers, which keeps the layers in an `MtpModel` beside the
target. Layer d reads, for each token, its embedding and the state of layer d - 1 one token earlier; layer 0 that of the
target. All layers keep the entry that goes back to the target's state t in slot t.
"""

from __future__ import annotations

from torch import Tensor

from ..interfaces import CachedModel, Sampler, Schedule
from ..models import AttentionLayers, RaggedCache, exchanged, fed_slots, with_folded_attention
from ..types import Batch, Draft
from .stepwise import Stepwise


class Mtp(Stepwise):
    """Drafts with transformers' `MtpModel`, at most one token a layer.

    Args:
        heads: the MTP layers; embeddings and head are the target's own.
    """

    hidden_layers = (-1,)
    num_forwards = 0

    def __init__(self, heads):
        self.heads = with_folded_attention(exchanged(heads, {}))
        # transformers' own masks are for rows of one length.
        self.heads.create_masks_for_mtp_layer = self._masks
        self.attention = AttentionLayers(heads)
        self.depth, self.device = len(heads.layers), next(heads.layers.parameters()).device
        self.dtype = next(heads.layers.parameters()).dtype

    def follow(self, target: CachedModel) -> None:
        self.target = target

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.cache = RaggedCache([None] * self.depth)
        #: seen[b][d]: slots of row b that layer d has filled for good
        self.seen = [[0] * self.depth for _ in batch.rows]

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        num_tokens = [min(n, self.depth) for n in num_tokens]
        # A layer needs what the one before it gave in the same pass, so all start where the last of them has to.
        depth = max(num_tokens)
        starts = [min(seen[:depth]) for seen in self.seen]
        self.ends = [len(history) - 1 for history in batch.history]
        if not any(self.ends):  # prompts of one token, just admitted: no state to start from
            return Draft.empty(batch)
        slots, is_filler = fed_slots(starts, self.ends, self.device)
        self.cache.reserve(len(starts), max(self.ends), limit=batch.max_length)
        self.cache.end = max(self.ends)
        self.cache.slots = slots.masked_fill(is_filler, self.cache.capacity - 1)
        self.slots = slots.masked_fill(is_filler, 0)
        self.columns = batch.padding[:, None] + self.slots.to(batch.padding.device) + 1
        self.masks = self.attention.masks(self.slots, self.cache, self.dtype)
        self.states = self.target.hidden_states(self.slots).to(self.device)
        return super().propose(batch, num_tokens, schedule, sampler)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        ids = batch.tokens.gather(1, self.columns + ahead).to(self.device)
        self.states = self.heads.forward_layer(ahead, self.states, self.slots + 1 + ahead, self.cache, input_ids=ids)
        self.num_forwards += 1
        for seen, end in zip(self.seen, self.ends, strict=True):
            seen[ahead] = end
        return self.heads._project_to_logits(self.states[:, -1:])[:, 0]

    def _masks(self, layer: int, *args) -> dict[str, Tensor]:
        kinds = self.attention.types
        return {"attention_mask": self.masks if kinds is None else self.masks[kinds[layer]]}

    def rollback(self, batch: Batch) -> None:
        # Layer d's entry in slot t read tokens up to t + 1 + d; the newest token of a row stands in place of a draft's.
        for seen, history in zip(self.seen, batch.history, strict=True):
            seen[:] = [max(0, min(n, len(history) - 2 - depth)) for depth, n in enumerate(seen)]

    def select(self, indices: list[int]) -> None:
        self.seen = [list(self.seen[i]) for i in indices]
        self.cache.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        for lane in lanes:
            self.seen[lane] = [0] * self.depth
