"""Draft the tokens that a call's grammar forces: without a pass, and accepted by any target under it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Batch, Guide, uploaded
from .proposers import Child, Kind, Proposer

#: the prior rate at which a target writes a forced text with its tokenizer's own tokens
PRIOR = 0.9


class Path(NamedTuple):
    """A place in a grammar: after a row's text and then `tokens`; `forced` are known to follow."""

    guide: Guide
    text: list[int]
    tokens: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()


class ForcedTokens(Proposer):
    """What a grammar forces. It also says what none of the proposers beside it may guess."""

    def begin(self, batch: Batch, vocab_size: int) -> None:
        self.guides: list[Guide | None] = []

    def begin_round(self, batch: Batch) -> None:
        self.guides = [batch.guide_of(row) for row in batch.rows]

    def place_after(self, lane: int, text: list[int]) -> Path | None:
        guide = self.guides[lane] if self.guides else None
        return None if guide is None else Path(guide, text)

    def children(self, place: Path) -> list[Child]:
        forced = place.forced or place.guide.forced(place.text, place.tokens)
        if not forced:
            return []
        token, *rest = forced
        return [(1, token, place._replace(tokens=(*place.tokens, token), forced=tuple(rest)))]

    def follow(self, place: Path, token: int) -> Path:
        return place._replace(tokens=(*place.tokens, token), forced=())

    def allows(self, place: Path | None, token: int) -> bool:
        """Whether the target may choose this token after a place, whoever guesses it."""
        return place is None or place.guide.allows(place.text, place.tokens, token)

    def prior(self, kind: Kind) -> float:
        return PRIOR


class ForcedChain:
    """What the grammars of all rows force next within a chain, for which a draft model needs no step."""

    def __init__(self, batch: Batch, vocab_size: int):
        guides = [guide for guide in map(batch.guide_of, batch.rows) if guide is not None]
        self.rows = list(zip(guides, batch.history, strict=True)) if len(guides) == len(batch.rows) else []
        self.vocab_size, self.device = vocab_size, batch.tokens.device

    def scores_after(self, chain: Sequence[Tensor]) -> Tensor | None:
        """Scores `(batch, vocab)` that leave each row its forced token after the `chain` of `(batch,)` tokens.

        `None`: a row may choose.
        """
        if not self.rows:
            return None
        paths = torch.stack([*chain], 1).tolist() if chain else [[]] * len(self.rows)
        forced = []
        for (guide, text), path in zip(self.rows, paths, strict=True):
            if not (run := guide.forced(text, tuple(path))):
                return None
            forced.append(run[:1])
        scores = torch.full((len(forced), self.vocab_size), -torch.inf, device=self.device)
        return scores.scatter_(1, uploaded(forced, self.device, torch.long), 0.0)
