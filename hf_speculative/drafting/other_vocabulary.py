"""Draft with a model of another tokenizer (Timor et al. 2025, arXiv 2502.05202): its tokens, or its text."""

import math

import torch
from torch import Tensor

from ..interfaces import Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .autoregressive import AutoregressiveDrafter
from .model_drafter import OtherVocabulary


class TokenIntersection(OtherVocabulary, AutoregressiveDrafter):
    """Drafts tokens that both vocabularies have: token-level intersection (section 4).

    The draft's logits are moved to the target's ids, and tokens that the target lacks are masked. This comes *before* the
    processors and the draw, so that the rule gets the distribution that the token was drawn from.
    """

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


class StringMatch(OtherVocabulary):
    """Drafts text: string-level exact match (section 3; "universal assisted generation" in transformers).

    The draft writes in its own vocabulary, all of it. What it wrote is encoded with the target's tokenizer, and the tokens
    that follow the committed ones are proposed. No distribution comes with them: they are verified as one-hot, for which the
    draft's likeliest token is the best guess.

    Reads the draft's tokens from the device, once a round more than other drafters.
    """

    one_hot_proposals = True
    by_token = False
    #: what it wrote in this round
    drafted: list[list[int]] | None = None

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        super().begin(batch, sampler)
        self.drafted = None

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        own = self.start(batch)
        # How many of the target's tokens a draft token stands for: no more draft steps than tokens asked for.
        share = max(1.0, sum(map(len, batch.history)) / sum(map(len, own.history)))
        limits = self.within_context(own, [math.ceil(n / share) for n in num_tokens])
        if max(limits) == 0:
            return Draft.empty(batch)
        going = uploaded(limits, batch.lengths.device)
        steps = []
        for ahead in range(max(limits)):
            logits = self.model.logits(own, ahead=ahead, num_last=1)[:, 0]
            scores = logits[:, : len(self.translation.draft.pieces)].float()  # beyond stands padding
            token = scores.argmax(-1)
            own.put(token[:, None], ahead)
            steps.append(token)
            stop = schedule.should_stop(scores, token)
            if stop is not None:
                going = torch.where(stop, going.clamp(max=ahead + 1), going)
                if bool((going <= ahead + 1).all()):
                    break
        *read, last = torch.stack([*steps, going]).tolist()  # the host has to see the text
        self.drafted = [[step[row] for step in read[:limit]] for row, limit in enumerate(last)]
        rows = zip(self.transcripts, self.drafted, batch.history, num_tokens, strict=True)
        found = [transcript.candidates(ids, history, n) if n else [] for transcript, ids, history, n in rows]
        return Draft.of(batch, found)

    def rollback(self, batch: Batch) -> None:
        self.follow_text(batch, self.drafted)
        self.drafted = None
