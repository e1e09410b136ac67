"""Base of the drafters for other vocabularies: a draft model that reads the committed text in its own ids."""

from ..interfaces import CachedModel, Drafter
from ..tokenizers.alignment import Translation
from ..tokenizers.transcript import Transcript
from ..types import Batch, uploaded

ENDLESS = 2**30


class DraftSide:
    """A draft model in its own ids: its cache, its own batch, and a transcript for each row.

    Args:
        model: the draft model with its cache.
        by_token: the draft's ids for committed tokens come from the table of shared ones where possible.
        max_positions: the longest sequence the draft can take.
    """

    def __init__(self, model: CachedModel, translation: Translation, by_token: bool, max_positions: int | None = None):
        self.model, self.translation, self.by_token = model, translation, by_token
        self.max_positions = max_positions
        self.transcripts: list[Transcript] = []
        self.batch: Batch | None = None

    def reset(self) -> None:
        self.model.reset()
        self.transcripts, self.batch = [], None

    def start(self, batch: Batch) -> Batch:
        """The draft's own batch, with the prompts of `batch` if this is the first round."""
        if self.batch is None:
            self.transcripts = [Transcript(self.translation, self.by_token) for _ in batch.rows]
            for transcript, history, pad in zip(self.transcripts, batch.history, batch.host_padding, strict=True):
                transcript.begin(history[: batch.prompt_width - pad])
                transcript.advance(history, [])
            width = max(len(transcript.ids) for transcript in self.transcripts)
            padding = [width - len(transcript.ids) for transcript in self.transcripts]
            rows = [[0] * pad + t.ids for pad, t in zip(padding, self.transcripts, strict=True)]
            ids = uploaded(rows, batch.tokens.device)
            texts = [transcript.ids for transcript in self.transcripts]
            self.batch = Batch(ids, padding, self.max_positions or ENDLESS, texts)
        return self.batch

    def follow(self, batch: Batch, drafted: list[list[int]] | None) -> None:
        """End a round: read the committed tokens, and roll back the draft's cache beyond them."""
        if self.batch is None:
            return
        drafted = drafted or [[]] * len(batch.rows)
        kept = [t.advance(h, d) for t, h, d in zip(self.transcripts, batch.history, drafted, strict=True)]
        ids = [transcript.ids for transcript in self.transcripts]
        # The first token that differs comes alone: what the cache holds of a row ends before it. Then the others.
        starts = [min(len(old), keep) for old, keep in zip(self.batch.history, kept, strict=True)]
        self._write(starts, [row[s : k + 1] for row, s, k in zip(ids, starts, kept, strict=True)])
        self.model.rollback(self.batch)
        if any(len(row) > keep + 1 for row, keep in zip(ids, kept, strict=True)):
            self._write([k + 1 for k in kept], [row[k + 1 :] for row, k in zip(ids, kept, strict=True)])

    def _write(self, starts: list[int], tails: list[list[int]]) -> None:
        assert self.batch is not None
        self.batch.replace_tail([p + s for p, s in zip(self.batch.host_padding, starts, strict=True)], tails)

    def select(self, indices: list[int]) -> None:
        if self.batch is not None:
            self.batch.select(indices)
            self.transcripts = [self.transcripts[i].copy() for i in indices]
        self.model.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.batch is None:  # the first round is still to come, and starts with all rows
            return
        fresh = DraftSide(self.model, self.translation, self.by_token, self.max_positions)
        self.batch.admit(own := fresh.start(newcomers), lanes)
        for lane, transcript in zip(lanes, fresh.transcripts, strict=True):
            self.transcripts[lane] = transcript
        if max(fresh.within_context([1] * len(lanes))):
            self.model.admit(own, lanes)
        else:
            self.model.forget(lanes)

    def within_context(self, num_tokens: list[int]) -> list[int]:
        """`num_tokens`, as far as the draft model can take its own batch."""
        assert self.batch is not None
        if self.max_positions is None:
            return num_tokens
        longest = self.max_positions + 1 - max(map(len, self.batch.history))
        return [max(0, min(n, longest)) if longest > 0 else 0 for n in num_tokens]


class OtherVocabulary(Drafter):
    """A drafter whose model has a vocabulary of its own.

    Attributes:
        side: the draft model in its own ids.
    """

    side: DraftSide

    @property
    def num_forwards(self) -> int:
        return self.side.model.num_forwards

    def prefill(self, batch: Batch) -> None:
        own = self.side.start(batch)
        if max(self.side.within_context([1] * len(batch.rows))):
            self.side.model.prefill(own)

    def select(self, indices: list[int]) -> None:
        self.side.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        self.side.admit(newcomers, lanes)
