"""How long a round takes, by how much is drafted in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """The time of a round: draft, one target pass, and everything around them.

    Attributes:
        rounds: `{batch_size: {num_draft_tokens: time}}`, in any unit. 0 draft tokens, one step of plain decoding, has to be
            there. Between two numbers the line through them is followed; beyond the largest draft, the last one; beyond the
            batch sizes given, the nearest of them.

    Raises:
        ValueError: nothing given, no time of a plain step, or a time that is not above 0.
    """

    rounds: Mapping[int, Mapping[int, float]]

    def __post_init__(self):
        if not self.rounds:
            raise ValueError("`rounds={}` gives no costs: give them as {batch_size: {num_draft_tokens: time}}.")
        for batch_size, times in self.rounds.items():
            if 0 not in times:
                raise ValueError(
                    f"`rounds[{batch_size}]={dict(times)}` lacks 0 draft tokens, a step of plain decoding."
                )
            if not all(time > 0 for time in times.values()):
                raise ValueError(f"`rounds[{batch_size}]={dict(times)}`: times have to be above 0.")

    def curve(self, batch_size: int, longest: int) -> list[float]:
        """Times of rounds of `batch_size` rows that draft 0, 1, ..., `longest` tokens."""
        sizes = sorted(self.rounds)
        at_size = min(max(batch_size, sizes[0]), sizes[-1])
        return [
            _interpolated({size: _interpolated(self.rounds[size], n) for size in sizes}, at_size)
            for n in range(longest + 1)
        ]


def _interpolated(points: Mapping[int, float], at: int) -> float:
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]]
    right = min(max(1, bisect_right(known, at)), len(known) - 1)
    x0, x1 = known[right - 1], known[right]
    return points[x0] + (points[x1] - points[x0]) * (at - x0) / (x1 - x0)
