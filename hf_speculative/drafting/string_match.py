"""Draft text with a model of another tokenizer.

String-level exact match (Timor et al. 2025, arXiv 2502.05202, section 3; "universal assisted generation" in transformers).
The draft writes in its own vocabulary, all of it. What it wrote is encoded with the target's tokenizer, and the tokens that
follow the committed ones are proposed. No distribution comes with them: they are verified as one-hot, for which the draft's
likeliest token is the best guess.
"""

import math

import torch

from ..interfaces import CachedModel, Sampler, Schedule
from ..tokenizers.alignment import Translation
from ..types import Batch, Draft, uploaded
from .draft_side import DraftSide, OtherVocabulary


class StringMatch(OtherVocabulary):
    """Drafts text with a causal language model of another vocabulary.

    Reads the draft's tokens from the device, once a round more than other drafters.

    Args:
        model: the draft model with its cache.
        translation: the two tokenizers.
        max_positions: the longest sequence the draft can take; a batch with a longer row is decoded plainly.
    """

    one_hot_proposals = True

    def __init__(self, model: CachedModel, translation: Translation, max_positions: int | None = None):
        self.side = DraftSide(model, translation, by_token=False, max_positions=max_positions)
        self.drafted: list[list[int]] | None = None

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.side.reset()
        self.drafted = None

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        own = self.side.start(batch)
        limits = self.side.within_context([math.ceil(n / self._tokens_per_draft_token(batch)) for n in num_tokens])
        if max(limits) == 0:
            return Draft.empty(batch)
        going = uploaded(limits, batch.lengths.device)
        steps = []
        for ahead in range(max(limits)):
            logits = self.side.model.logits(own, ahead=ahead, num_last=1)[:, 0]
            scores = logits[:, : len(self.side.translation.draft.pieces)].float()  # beyond stands padding
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
        found = [
            transcript.candidates(ids, history, n) if n else []
            for transcript, ids, history, n in zip(
                self.side.transcripts, self.drafted, batch.history, num_tokens, strict=True
            )
        ]
        width = max(map(len, found))
        if width == 0:
            return Draft.empty(batch)
        device = batch.tokens.device
        tokens = uploaded([ids + [0] * (width - len(ids)) for ids in found], device)
        return Draft(tokens, None, uploaded([len(ids) for ids in found], device))

    def rollback(self, batch: Batch) -> None:
        self.side.follow(batch, self.drafted)
        self.drafted = None

    def _tokens_per_draft_token(self, batch: Batch) -> float:
        """How many of the target's tokens a draft token stands for, 1 at least: no more draft steps than tokens asked for."""
        assert self.side.batch is not None
        return max(1.0, sum(map(len, batch.history)) / sum(map(len, self.side.batch.history)))
