"""Draft tokens that both vocabularies have, with a model of another tokenizer.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, section 4). The draft's logits are moved to the target's ids and
tokens that the target lacks are masked *before* the processors and the draw, so that the rule gets the distribution that the
token was drawn from.
"""

import torch
from torch import Tensor

from ..interfaces import CachedModel, Sampler
from ..tokenizers.alignment import Translation
from ..types import Batch
from .autoregressive import AutoregressiveDrafter
from .draft_side import DraftSide, OtherVocabulary


class TokenIntersection(OtherVocabulary, AutoregressiveDrafter):
    """Drafts with a causal language model of another vocabulary, token by token.

    Args:
        model: the draft model with its cache.
        translation: the two tokenizers.
        max_positions: the longest sequence the draft can take; a batch with a longer row is decoded plainly.
    """

    def __init__(self, model: CachedModel, translation: Translation, max_positions: int | None = None):
        self.side = DraftSide(model, translation, by_token=True, max_positions=max_positions)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.side.reset()
        translation, device = self.side.translation, batch.tokens.device
        self.draft_ids = torch.tensor(list(translation.to_target.keys()), device=device)
        self.target_ids = torch.tensor(list(translation.to_target.values()), device=device)
        self.to_draft = torch.zeros(sampler.vocab_size, dtype=torch.long, device=device)
        self.to_draft[self.target_ids] = self.draft_ids

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        self.own = self.side.start(batch)
        return self.side.within_context(num_tokens)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        """The draft's logits in the target's ids, `(batch, vocab)`: tokens that are not shared are impossible."""
        logits = self.side.model.logits(self.own, ahead=ahead, num_last=1)[:, 0]
        moved = logits.new_full((logits.shape[0], len(self.to_draft)), -torch.inf)
        return moved.index_copy_(1, self.target_ids, logits.index_select(1, self.draft_ids))

    def drawn(self, tokens: Tensor, ahead: int) -> None:
        self.own.put(self.to_draft[tokens][:, None], ahead)

    def rollback(self, batch: Batch) -> None:
        self.side.follow(batch, None)
