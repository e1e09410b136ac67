"""Draft text with a model of another tokenizer.

String-level exact match (Timor et al. 2025, arXiv 2502.05202, section 3; "universal assisted generation" in transformers).
The draft writes in its own vocabulary, all of it. What it wrote is encoded with the target's tokenizer, and the tokens that
follow the committed ones are proposed. No distribution comes with them: they are verified as one-hot, for which the draft's
likeliest token is the best guess.
"""

import math

import torch

from ..interfaces import Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .model_drafter import OtherVocabulary


class StringMatch(OtherVocabulary):
    """Drafts text with a causal language model of another vocabulary.

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
