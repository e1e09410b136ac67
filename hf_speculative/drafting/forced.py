"""Tokens that a call's grammar forces, whatever the model says: drafted without a pass, and accepted by any target under it."""

from typing import NamedTuple

from ..types import Batch, Guide
from .proposers import Child, Kind, Proposer

#: how often a target writes what is forced as its tokenizer would, before any was seen
PRIOR = 0.9


class Path(NamedTuple):
    """A place in a grammar: after a row's text and then `tokens`; `forced` are known to follow."""

    guide: Guide
    text: list[int]
    tokens: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()


class ForcedTokens(Proposer):
    """What a grammar forces. It also says what none of the proposers beside it may guess."""

    def __init__(self):
        self.guides: list[Guide | None] = []

    def begin(self, batch: Batch, vocab_size: int) -> None:
        self.guides = []

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

    def allows(self, place: Path, token: int) -> bool:
        return place.guide.allows(place.text, place.tokens, token)

    def prior(self, kind: Kind) -> float:
        return PRIOR
