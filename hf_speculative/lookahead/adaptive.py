"""The draft length that brings the most tokens per second, by measured cost and by what was accepted so far.

Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8, without its assumption that all tokens are alike: a round that drafts g
tokens brings a row 1 + s_1 + ... + s_g tokens, s_i the chance that draft token i survives, and takes the time that was
measured for it. All rows share that time, so one length is chosen for all; a shorter draft in one row would save nothing, and
would say less about it. 0 is among the choices: plain decoding, with a try now and then, for a text may become predictable.

All of it depends on earlier rounds and on costs that no longer change; of the round that is decided about nothing is known yet.
That keeps the output exact.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from ..types import Batch, Round, Schedule
from .costs import Costs

#: before the first draft token this share is taken to be accepted, as if seen in so many of them
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 4.0
#: what a drafting round leaves of the evidence before it, and what a try leaves of it, being much older
MEMORY, MEMORY_OF_A_TRY = 0.96, 0.5
#: a position counts as if so many tokens of it had been seen at its row's rate, a row likewise at the rate of all rows
POSITION_WEIGHT, ROW_WEIGHT = 8.0, 2.0
#: drafting goes on until it looks slower than plain decoding by this much: few tokens make rates uncertain
MARGIN = 0.03
#: tries of a draft that did not pay may take this share of the time, and less the oftener they fail
TRY_SHARE, LONGEST_WAIT = 0.02, 8


class Evidence:
    """How many draft tokens survived at each position, of those whose predecessors did; old rounds fade.

    Attributes:
        reached, kept: by position, sums over rounds of the chance that it was reached and that it was kept.
    """

    def __init__(self, longest: int):
        self.reached, self.kept = [0.0] * longest, [0.0] * longest

    def add(self, survivals: list[list[float]], memory: float) -> None:
        """One round: the mean of `survivals`, one for each draft."""
        self.reached, self.kept = [n * memory for n in self.reached], [n * memory for n in self.kept]
        for survival in survivals:
            for i, (reached, kept) in enumerate(zip([1.0, *survival], survival, strict=False)):
                self.reached[i] += reached / len(survivals)
                self.kept[i] += kept / len(survivals)

    def rate(self, prior: float = 0.0, weight: float = 0.0) -> float:
        """The share kept over all positions, drawn to `prior`."""
        return (sum(self.kept) + weight * prior) / (sum(self.reached) + weight)

    def survival(self, rate: float) -> list[float]:
        """s_1, s_2, ...: products of the shares kept at each position, those drawn to `rate`."""
        survivals, survival = [], 1.0
        for reached, kept in zip(self.reached, self.kept, strict=True):
            survival *= (kept + POSITION_WEIGHT * rate) / (reached + POSITION_WEIGHT)
            survivals.append(survival)
        return survivals


class Adaptive(Schedule):
    """The length with the best expected tokens per second, 0 included.

    Args:
        max_tokens: the longest draft.
        costs: of rounds; by default those that are measured before a first call and then kept. With costs given, the lengths
            do not depend on the machine.
    """

    def __init__(self, max_tokens: int = 16, costs: Costs | None = None):
        self.max_tokens, self.costs = max_tokens, costs
        self.rows: dict[int, Evidence] = {}
        self.all_rows = Evidence(max_tokens)
        self.all_rows.reached[0], self.all_rows.kept[0] = PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_RATE
        self.times: dict[int, list[float]] = {}
        self.num_idle, self.wait, self.is_try = 0, 0.0, False

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.costs = self.costs or costs()

    def plan(self, batch: Batch) -> list[int]:
        rooms = self.rooms(batch)
        longest = min(self.max_tokens, max(rooms))
        length = self._length(batch.rows, rooms, longest) if longest else 0
        return [min(length, room) for room in rooms]

    def _length(self, rows: list[int], rooms: list[int], longest: int) -> int:
        times, tokens = self._times(len(rows)), self._expected_tokens(rows, rooms, longest)
        speeds = [n / time for n, time in zip(tokens, times, strict=False)]
        best = speeds.index(max(speeds))
        if best == 0 and self.num_idle == 0 and speeds[1] > (1 - MARGIN) * speeds[0]:
            best = 1
        loss = times[1] / times[0] - 1  # of a round whose only draft token is refused, in plain steps
        self.is_try = False
        if best > 0:
            self.num_idle, self.wait = 0, loss / TRY_SHARE
            return best
        self.num_idle += 1
        # A token that takes as long to draft as to decode never pays.
        self.is_try = self.num_idle > self.wait and loss < 1
        return int(self.is_try)

    def _expected_tokens(self, rows: list[int], rooms: list[int], longest: int) -> list[float]:
        """What a round brings all rows together, for drafts of 0, 1, ..., `longest` tokens."""
        rate = self.all_rows.rate()
        gains = [float(len(rows))] + [0.0] * longest
        for row, room in zip(rows, rooms, strict=True):
            evidence = self._evidence(row)
            survival = evidence.survival(evidence.rate(rate, ROW_WEIGHT))
            for i in range(min(longest, room)):
                gains[i + 1] += survival[i]
        return list(accumulate(gains))

    def update(self, round: Round) -> None:
        drafts = {row: survival for row, survival in zip(round.rows, round.survival, strict=True) if survival}
        if not drafts:
            return
        memory = MEMORY_OF_A_TRY if self.is_try else MEMORY
        self.all_rows.add(list(drafts.values()), memory)
        for row, survival in drafts.items():
            self._evidence(row).add([survival], memory)
        if self.is_try:
            times = self._times(len(round.rows))
            gain = sum(survival[0] for survival in drafts.values()) / len(round.rows)
            if (1 + gain) / times[1] < 1 / times[0]:  # otherwise the next round tries again
                self.num_idle = 1
                self.wait = min(2 * self.wait, LONGEST_WAIT * (times[1] / times[0] - 1) / TRY_SHARE)

    def _evidence(self, row: int) -> Evidence:
        return self.rows.setdefault(row, Evidence(self.max_tokens))

    def _times(self, batch_size: int) -> list[float]:
        """Times of rounds that draft 0, 1, ... tokens."""
        if batch_size not in self.times:
            assert self.costs is not None  # `begin` comes before the first plan
            self.times[batch_size] = self.costs.curve(batch_size, self.max_tokens)
        return self.times[batch_size]
