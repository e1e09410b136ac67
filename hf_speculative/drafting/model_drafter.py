"""Drafters that run a draft model with a cache of its own: their base classes, and those with another tokenizer's model.

The latter are by Timor et al. 2025 (arXiv 2502.05202): the model drafts its tokens, or its text.
"""

import math

import torch
from torch import Tensor

from ..forwarding import Forwarded
from ..interfaces import CachedModel, Drafter, Sampler, Schedule
from ..tokenizers.alignment import Translation
from ..tokenizers.transcript import Transcript
from ..types import Batch, Draft, uploaded
from .autoregressive import AutoregressiveDrafter

ENDLESS = 2**30


class ModelDrafter(Drafter):
    """A drafter with a causal language model and a cache of its own.

    Args:
        model: the draft model with its cache.
        max_positions: the longest sequence the draft can take; a batch with a longer row is decoded plainly.
    """

    num_forwards = Forwarded("model", "num_forwards")  # type: ignore[assignment]
    keeps_rows_together = Forwarded("model", "keeps_rows_together")  # type: ignore[assignment]
    release = Forwarded("model", "release")  # type: ignore[assignment]

    def __init__(self, model: CachedModel, max_positions: int | None = None):
        self.model, self.max_positions = model, max_positions

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.model.reset()

    def prefill(self, batch: Batch) -> None:
        if self.can_read(batch):
            self.model.prefill(batch)

    def select(self, indices: list[int]) -> None:
        self.model.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.can_read(newcomers):
            self.model.admit(newcomers, lanes)
        else:
            self.model.forget(lanes)

    def can_read(self, batch: Batch) -> bool:
        return max(self.within_context(batch, [1])) > 0

    def within_context(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        """`num_tokens`, as far as the model can take `batch`, in its own ids."""
        if self.max_positions is None:
            return num_tokens
        longest = max(map(len, batch.history))
        if self.model.window is not None:
            longest = min(longest, self.model.window)
        # The last proposal is never fed, so n proposals need length + n - 1 positions.
        # A longer row could not even be caught up: the whole batch goes plain.
        room = max(0, self.max_positions + 1 - longest)
        return [min(n, room) for n in num_tokens]


class OtherVocabulary(ModelDrafter):
    """A drafter whose model has a vocabulary of its own, in which it reads the committed text.

    Args:
        translation: the two tokenizers.

    Attributes:
        by_token: the draft's ids for committed tokens come from the table of shared ones where possible.
        own: the batch in the draft's ids, from the first draft on; `transcripts` are those of its rows.
        drafted: what `StringMatch` wrote in this round, in those ids.
    """

    by_token: bool
    own: Batch | None
    drafted: list[list[int]] | None

    def __init__(self, model: CachedModel, translation: Translation, max_positions: int | None = None):
        super().__init__(model, max_positions)
        self.translation = translation

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        super().begin(batch, sampler)
        self.transcripts: list[Transcript] = []
        self.own = self.drafted = None

    def prefill(self, batch: Batch) -> None:
        super().prefill(self.start(batch))

    def start(self, batch: Batch) -> Batch:
        """The draft's own batch, with the prompts of `batch` if this is the first round."""
        if self.own is None:
            self.transcripts, self.own = self._read(batch)
        return self.own

    def _read(self, batch: Batch) -> tuple[list[Transcript], Batch]:
        transcripts = [Transcript(self.translation, self.by_token) for _ in batch.rows]
        for transcript, history, pad in zip(transcripts, batch.history, batch.host_padding, strict=True):
            transcript.begin(history[: batch.prompt_width - pad])
            transcript.advance(history, [])
        texts = [transcript.draft.ids for transcript in transcripts]
        width = max(map(len, texts))
        padding = [width - len(text) for text in texts]
        ids = uploaded([[0] * pad + text for pad, text in zip(padding, texts, strict=True)], batch.tokens.device)
        limit = self.max_positions if self.model.window is None else None
        return transcripts, Batch(ids, padding, limit or ENDLESS, texts)

    def rollback(self, batch: Batch) -> None:
        """End a round: read the committed tokens, and roll back the draft's cache beyond them."""
        if self.own is None:
            return
        drafted, self.drafted = self.drafted or [[]] * len(batch.rows), None
        kept = [t.advance(h, d) for t, h, d in zip(self.transcripts, batch.history, drafted, strict=True)]
        ids = [transcript.draft.ids for transcript in self.transcripts]
        # The first token that differs comes alone: what the cache holds of a row ends before it. Then the others.
        starts = [min(len(old), keep) for old, keep in zip(self.own.history, kept, strict=True)]
        self._write(self.own, starts, [row[s : k + 1] for row, s, k in zip(ids, starts, kept, strict=True)])
        self.model.rollback(self.own)
        if any(len(row) > keep + 1 for row, keep in zip(ids, kept, strict=True)):
            self._write(self.own, [k + 1 for k in kept], [row[k + 1 :] for row, k in zip(ids, kept, strict=True)])

    @staticmethod
    def _write(own: Batch, starts: list[int], tails: list[list[int]]) -> None:
        own.replace_tail([pad + start for pad, start in zip(own.host_padding, starts, strict=True)], tails)

    def select(self, indices: list[int]) -> None:
        if self.own is not None:
            self.own.select(indices)
            self.transcripts = [self.transcripts[i].copy() for i in indices]
        super().select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.own is None:  # the first round is still to come, and starts with all rows
            return
        transcripts, own = self._read(newcomers)
        self.own.admit(own, lanes)
        for lane, transcript in zip(lanes, transcripts, strict=True):
            self.transcripts[lane] = transcript
        super().admit(own, lanes)


class TokenIntersection(OtherVocabulary, AutoregressiveDrafter):
    """Drafts tokens that both vocabularies have: token-level intersection (Timor et al., section 4).

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


class StringMatch(OtherVocabulary):
    """Drafts text: string-level exact match (Timor et al., section 3; "universal assisted generation" in transformers).

    The draft writes in its own vocabulary, all of it. What it wrote is encoded with the target's tokenizer, and the tokens
    that follow the committed ones are proposed. No distribution comes with them: they are verified as one-hot, for which the
    draft's likeliest token is the best guess.

    Reads the draft's tokens from the device, once a round more than other drafters.
    """

    one_hot_proposals = True
    by_token = False

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
