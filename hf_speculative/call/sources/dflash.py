"""A block-diffusion head that was trained for the target: `draft_model=` a DFlash draft."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from ...drafting import DFlash
from ...heads.dflash import Block
from ...interfaces import Drafter
from .given_model import HeadSource


class DFlashSource(HeadSource):
    method = "dflash"
    scores_levels = True
    config_fields = ("target_layer_ids", "block_size", "mask_token_id")

    @property
    def block(self) -> Block:
        return Block.of(self.draft_model.config)

    def unsupported_reason(self, config) -> str | None:
        size, layers = self.draft_model.config.hidden_size, max(self.block.target_layer_ids)
        if layers >= config.num_hidden_layers or size != config.hidden_size:
            return f"a target of hidden size {size} with more than {layers} layers"
        last_id = max(self.block.mask_token_id, self._last_id())
        return None if last_id < config.vocab_size else f"a target that has the token id {last_id}"

    def _last_id(self) -> int:
        """The last of the target's ids that it proposes by a map of its own."""
        d2t = getattr(self.draft_model, "d2t", None)
        return 0 if d2t is None else int((d2t + torch.arange(len(d2t), device=d2t.device)).max())

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.block.max_draft_tokens

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return self.in_trees(DFlash(self.draft_model, model))


class DSparkSource(DFlashSource):
    """One whose block is corrected by a Markov head, which vLLM has a method of its own for."""

    method = "dspark"

    @classmethod
    def takes(cls, value) -> bool:
        return super().takes(value) and bool(getattr(value.config, "markov_rank", 0))
