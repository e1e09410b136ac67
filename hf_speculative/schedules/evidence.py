"""How often draft tokens were accepted, by position."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

#: before the first draft token this share is taken to be accepted, as if seen in so many of them
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 4.0
#: what a round leaves of the evidence before it; what an earlier call has seen counts as so many tokens at most
MEMORY, START_WEIGHT = 0.96, 8.0
#: a position counts as if so many tokens of it had been seen at the rate of all
POSITION_WEIGHT = 8.0


class Evidence:
    """How many draft tokens were kept at each position, of those whose predecessors were; old rounds fade.

    Attributes:
        reached, kept: by position, sums over rounds of the chance that it was reached and that it was kept.
    """

    def __init__(self, longest: int, rate: float = PRIOR_RATE):
        self.reached, self.kept = [0.0] * longest, [0.0] * longest
        self.reached[0], self.kept[0] = PRIOR_WEIGHT, PRIOR_WEIGHT * rate

    def add(self, drafts: list[list[float]]) -> None:
        """One round: for each of `drafts` the chances that its first token, its first two, ... were kept; the mean counts."""
        self._scale(MEMORY)
        for chances in drafts:
            for i, (reached, kept) in enumerate(zip([1.0, *chances], chances[: len(self.kept)], strict=False)):
                self.reached[i] += reached / len(drafts)
                self.kept[i] += kept / len(drafts)

    def faded(self) -> Evidence:
        """The same rates, seen in no more than `START_WEIGHT` tokens."""
        faded = Evidence(len(self.reached))
        faded.reached, faded.kept = [*self.reached], [*self.kept]
        faded._scale(min(1.0, START_WEIGHT / max(self.reached)))
        return faded

    def rates(self) -> list[float]:
        """The share kept at each position, drawn towards that of all positions."""
        rate = sum(self.kept) / sum(self.reached)
        positions = zip(self.reached, self.kept, strict=True)
        return [(kept + POSITION_WEIGHT * rate) / (reached + POSITION_WEIGHT) for reached, kept in positions]

    def _scale(self, weight: float) -> None:
        self.reached, self.kept = [n * weight for n in self.reached], [n * weight for n in self.kept]


def expected_tokens(rates: list[float], rooms: list[int]) -> list[float]:
    """What a round brings a row in the mean, with drafts of 0, 1, ... tokens, each as long as its row has room for."""
    shares = [sum(room > i for room in rooms) / len(rooms) for i in range(len(rates))]
    survival = accumulate(rates, mul)
    return [*accumulate((share * chance for share, chance in zip(shares, survival, strict=True)), initial=1.0)]
