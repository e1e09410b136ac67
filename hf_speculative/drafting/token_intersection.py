"""A draft with another tokenizer guesses tokens that both vocabularies have.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, section 4). The draft's logits are moved to the target's ids and
what the target does not know is masked *before* the processors and the draw, so that the law handed to the rule is the one
that the token came from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import CachedModel
from ..sampling import Sampler
from ..translation import Translation
from ..types import Batch, Draft, Drafter, Schedule
from .draft_side import DraftSide


class TokenIntersection(Drafter):
    """Drafts with a causal language model of another vocabulary, token by token.

    Args:
        model: the draft model with its cache.
        translation: the two tokenizers.
        max_positions: the longest sequence the draft can take; a batch with a longer row is decoded plainly.
    """

    def __init__(self, model: CachedModel, translation: Translation, max_positions: int | None = None):
        self.side = DraftSide(model, translation, by_token=True, max_positions=max_positions)

    @property
    def num_forwards(self) -> int:
        return self.side.model.num_forwards

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.side.reset()
        translation, device = self.side.translation, batch.tokens.device
        self.draft_ids = torch.tensor(list(translation.to_target.keys()), device=device)
        self.target_ids = torch.tensor(list(translation.to_target.values()), device=device)
        self.to_draft = torch.zeros(sampler.vocab_size, dtype=torch.long, device=device)
        self.to_draft[self.target_ids] = self.draft_ids

    def prefill(self, batch: Batch) -> None:
        own = self.side.start(batch)
        if max(self.side.within_context([1] * len(batch.rows))):
            self.side.model.prefill(own)

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        own = self.side.start(batch)
        num_tokens = self.side.within_context(num_tokens)
        width = max(num_tokens)
        if width == 0:
            return Draft.empty(batch)
        limits = torch.tensor(num_tokens, device=batch.lengths.device)
        tokens, probs = [], []
        for ahead in range(width):
            logits = self.side.model.logits(own, ahead=ahead, num_last=1)[:, 0]
            scores = sampler.draft_scores(batch, self._in_target_ids(logits, sampler.vocab_size), ahead)
            token, law = sampler.propose(scores, ahead)
            batch.put(token[:, None], ahead)
            own.put(self.to_draft[token][:, None], ahead)
            tokens.append(token)
            probs.append(law)
            stop = schedule.should_stop(scores, token)
            if stop is not None:
                limits = torch.where(stop, limits.clamp(max=ahead + 1), limits)
                if bool((limits <= ahead + 1).all()):
                    break
        laws = None if probs[0] is None else torch.stack(probs, 1)
        return Draft(torch.stack(tokens, 1), laws, limits)

    def rollback(self, batch: Batch) -> None:
        self.side.follow(batch, None)

    def select(self, indices: list[int]) -> None:
        self.side.select(indices)

    def _in_target_ids(self, logits: Tensor, vocab_size: int) -> Tensor:
        """`(batch, draft vocab)` to `(batch, vocab_size)`: what is not shared is impossible."""
        moved = logits.new_full((logits.shape[0], vocab_size), -torch.inf)
        return moved.index_copy_(1, self.target_ids, logits.index_select(1, self.draft_ids))
