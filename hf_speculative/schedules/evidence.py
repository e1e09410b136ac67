"""Acceptance rates of draft tokens by position, for each row and for all rows."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

#: the prior acceptance rate, and its weight in draft tokens
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 4.0
#: decay of evidence a round; the most draft tokens that evidence of earlier calls counts as
MEMORY, START_WEIGHT = 0.96, 8.0
#: weights, in draft tokens, of the row's rate as the prior of a position, and of the rate of all rows as that of a row
POSITION_WEIGHT, ROW_WEIGHT = 8.0, 16.0


class Counts:
    """How many draft tokens were kept at each position, of those whose predecessors were; old rounds fade.

    Attributes:
        reached, kept: by position, sums over rounds of the chance that it was reached and that it was kept.
    """

    def __init__(self, longest: int):
        self.reached, self.kept = [0.0] * longest, [0.0] * longest

    def add(self, drafts: Sequence[list[float]]) -> None:
        """One round: for each of `drafts` the chances that its first token, its first two, ... were kept; their mean counts."""
        self.fade(MEMORY)
        for chances in drafts:
            for i, (reached, kept) in enumerate(zip([1.0, *chances], chances[: len(self.kept)], strict=False)):
                self.reached[i] += reached / len(drafts)
                self.kept[i] += kept / len(drafts)

    def fade(self, weight: float) -> None:
        self.reached, self.kept = [n * weight for n in self.reached], [n * weight for n in self.kept]

    def rate(self) -> float:
        """The share kept over all positions."""
        return sum(self.kept) / sum(self.reached)


class Evidence:
    """What came of drafts of up to `longest` tokens, as if `rate` of the first ones had been kept.

    Attributes:
        is_assumed: there was none.
    """

    is_assumed = True

    def __init__(self, longest: int, rate: float = PRIOR_RATE):
        self.all_rows, self.rows = Counts(longest), dict[int, Counts]()
        self.all_rows.reached[0], self.all_rows.kept[0] = PRIOR_WEIGHT, PRIOR_WEIGHT * rate

    def add(self, drafts: dict[int, list[float]]) -> None:
        """One round's drafts, by row: the chances that the first token, the first two, ... were kept."""
        self.is_assumed = False
        self.all_rows.add(list(drafts.values()))
        for row, chances in drafts.items():
            self._of(row).add([chances])

    def forget_all_but(self, rows: list[int]) -> None:
        """Rows that are done; a server's call has no end."""
        for row in self.rows.keys() - {*rows}:
            del self.rows[row]

    def faded(self) -> "Evidence":
        """The same rates of all rows, seen in no more than `START_WEIGHT` tokens."""
        faded = Evidence(len(self.all_rows.kept))
        faded.is_assumed = self.is_assumed
        faded.all_rows.reached, faded.all_rows.kept = self.all_rows.reached, self.all_rows.kept
        faded.all_rows.fade(min(1.0, START_WEIGHT / max(self.all_rows.reached)))
        return faded

    def rates(self, row: int) -> list[float]:
        """The share kept at each position of those that reach it, drawn towards the row's other positions and all rows.

        A position's own tokens count once: else a few that one of many rows lost by chance would end the drafts of all.
        """
        counts, everywhere = self._of(row), self.all_rows.rate() * ROW_WEIGHT
        all_reached, all_kept = sum(counts.reached) + ROW_WEIGHT, sum(counts.kept) + everywhere
        positions = zip(counts.reached, counts.kept, strict=True)
        return [
            (kept + POSITION_WEIGHT * (all_kept - kept) / (all_reached - reached)) / (reached + POSITION_WEIGHT)
            for reached, kept in positions
        ]

    def _of(self, row: int) -> Counts:
        return self.rows.setdefault(row, Counts(len(self.all_rows.kept)))


def expected_tokens(rates: list[float], room: int) -> list[float]:
    """What a round brings with drafts of 0, 1, ... tokens, or as many as there is `room` for."""
    survival = accumulate(rates, mul)
    return [*accumulate((chance * (i < room) for i, chance in enumerate(survival)), initial=1.0)]
