"""Draft tokens that both vocabularies have, with a model of another tokenizer.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, section 4). The draft's logits are moved to the target's ids,
and tokens that the target lacks are masked. This comes *before* the processors and the draw, so that the rule gets the
distribution that the token was drawn from.
"""

import torch
from torch import Tensor

from ..interfaces import Sampler
from ..types import Batch
from .autoregressive import AutoregressiveDrafter
from .model_drafter import OtherVocabulary


class TokenIntersection(OtherVocabulary, AutoregressiveDrafter):
    """Drafts with a causal language model of another vocabulary, token by token."""

    by_token = True

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        super().begin(batch, sampler)
        to_target, device = self.translation.to_target, batch.tokens.device
        self.draft_ids = torch.tensor(list(to_target.keys()), device=device)
        self.target_ids = torch.tensor(list(to_target.values()), device=device)
        self.to_draft = torch.zeros(sampler.vocab_size, dtype=torch.long, device=device)
        self.to_draft[self.target_ids] = self.draft_ids

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        return self.within_context(self.start(batch), num_tokens)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        """The draft's logits in the target's ids, `(batch, vocab)`: tokens that are not shared are impossible."""
        own = self.start(batch)
        if ahead:
            drawn = batch.tokens.gather(1, batch.lengths[:, None] - 1 + ahead)
            own.put(self.to_draft[drawn], ahead - 1)
        logits = self.model.logits(own, ahead=ahead, num_last=1)[:, 0]
        moved = logits.new_full((logits.shape[0], len(self.to_draft)), -torch.inf)
        return moved.index_copy_(1, self.target_ids, logits.index_select(1, self.draft_ids))

    def rollback(self, batch: Batch) -> None:
        self.follow_text(batch)
