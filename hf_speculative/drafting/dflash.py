"""A block of masks, filled in at once: DFlash (arXiv 2602.06036), `speculation_type="dflash"` in transformers.

The draft reads the target's states at several layers as keys and values of its own, then denoises one block: the newest token
and masks after it, which see each other. All logits of a block are known before its first token is drawn. Logits processors
still see the tokens drawn before each position, and the rule gets the processed distributions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..interfaces import CachedModel, Sampler
from ..models import AttentionLayers, RaggedCache, exchanged, fed_slots, with_folded_attention
from ..types import Batch, uploaded
from .stepwise import Stepwise


class DFlash(Stepwise):
    """Drafts with a block-diffusion model that was trained for the target.

    Args:
        model: the draft.
        target_model: the target, whose embeddings and head the draft uses.
    """

    num_forwards = 0
    scores_levels = True

    def __init__(self, model: PreTrainedModel, target_model: PreTrainedModel):
        self.model = with_folded_attention(model)
        config = model.config
        self.hidden_layers = self.layers_read(config)
        self.block_size, self.mask_id, self.device = config.block_size, config.mask_token_id, model.device
        self.attention = AttentionLayers(model)
        self.head = target_model.get_output_embeddings()
        self.embed = target_model.get_input_embeddings()
        if hasattr(self.embed, "embed_norm"):  # masks are embedded without it
            self.embed = exchanged(self.embed, {"embed_norm": nn.Identity()})

    @staticmethod
    def layers_read(config) -> tuple[int, ...]:
        """Which of the target's `hidden_states` a draft of this config reads: after those layers."""
        return tuple(layer + 1 for layer in config.target_layer_ids)

    def follow(self, target: CachedModel) -> None:
        self.target = target

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.cache = RaggedCache([None] * self.model.config.num_hidden_layers)
        self.seen = [0] * len(batch.rows)

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        return [min(n, self.block_size - 1) for n in num_tokens]

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            self.logits = self._denoise(batch)
        return self.logits[:, ahead]

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        assert batch.tree is not None
        return self.logits[:, batch.tree.depth, None].expand(-1, width, -1)  # whatever is on the way there

    def _denoise(self, batch: Batch) -> Tensor:
        """Logits `(batch, block - 1, vocab)` of the block after each row's newest token."""
        ends = [len(history) - 1 for history in batch.history]
        context, is_filler = fed_slots(self.seen, ends, self.device)
        block = uploaded(ends, self.device)[:, None] + torch.arange(self.block_size, device=self.device)
        end = max(ends) + self.block_size
        self.cache.reserve(len(ends), end, limit=batch.max_length + self.block_size)
        self.cache.end = end
        self.cache.slots = torch.cat([context.masked_fill(is_filler, self.cache.capacity - 1), block], 1)
        context = context.masked_fill(is_filler, 0)

        newest = batch.tokens.gather(1, batch.lengths[:, None] - 1)
        masks = newest.new_full((len(ends), self.block_size - 1), self.mask_id)
        noise = self.embed(torch.cat([newest, masks], 1).to(self.embed.weight.device))
        outputs = self.model(
            noise_embeds=noise.to(self.device),
            context_hidden_states=self.target.hidden_states(context).to(self.device),
            position_ids=torch.cat([context, block], 1),
            attention_mask=self._masks(block, end),
            past_key_values=self.cache,
        )
        self.num_forwards += 1
        self.seen = ends
        return self.head(outputs.last_hidden_state[:, 1:].to(self.head.weight.device))

    def _masks(self, block: Tensor, end: int) -> dict[str, Tensor]:
        """The block sees all context and all of itself; `(batch, 1, block, end)`."""
        slots = torch.arange(end, device=self.device)
        visible = (slots <= block[:, -1:, None, None]).expand(-1, 1, self.block_size, -1)
        masks = {"full_attention": visible}
        if self.attention.window is not None:
            masks["sliding_attention"] = visible & ((slots - block[:, None, :, None]).abs() <= self.attention.window)
        return {kind: self.attention.explicit(mask, self.model.dtype) for kind, mask in masks.items()}

    def select(self, indices: list[int]) -> None:
        self.seen = [self.seen[i] for i in indices]
        self.cache.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        for lane in lanes:
            self.seen[lane] = 0
