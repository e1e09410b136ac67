"""The draft length with which a batch is expected to be done first, by measured cost and past acceptance.

Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8, without its assumption that all tokens are alike: a round that drafts g
tokens brings a row 1 + s_1 + ... + s_g tokens, s_i the chance that draft token i survives, and takes the time that was
measured for it. All rows share that time, so one length is chosen for all; a shorter draft in one row would save nothing and
tell less about it. What counts is when the last row is done (`remaining.py`).

If no draft seems to pay, the length is 0, plain decoding, unless there is credit: a little at the start, a little more with
each round, and some of the time that drafting has saved, in earlier calls too. So bad luck at the start of a text does not end
drafting, a text that becomes predictable is noticed, and a useless draft costs little. Calls keep an account of what drafting
has saved and lost: after those in which it lost, there is no try until others have put in enough.

The decision depends only on earlier rounds, what they took included, not on the round it is about. So the output stays exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from ..interfaces import Schedule
from ..types import Batch, Costs, Round
from .remaining import Floats, Remaining

#: before the first draft token this share is taken to be accepted, as if seen in so many of them
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 4.0
#: what a drafting round leaves of the evidence before it
MEMORY = 0.96
#: a position counts as if so many tokens of it had been seen at its row's rate, a row likewise at the rate of all rows
POSITION_WEIGHT, ROW_WEIGHT = 8.0, 2.0
#: what drafts may lose against plain decoding, in plain steps: at the start, of what they have won, and each round
FIRST_CREDIT, MOST_CREDIT, CREDIT_A_ROUND = 3.0, 8.0, 0.015
#: and of the plain steps that a call asks for, this share at the start
FIRST_SHARE = 0.02
#: what the first draft of a call takes besides its round, in plain steps: it reads the prompts
FIRST_DRAFT = 2.0
#: and from then on rows that were equally long differ in length: so much of each plain step to come
UNEQUAL = 0.02
#: the most that calls leave to later ones
MOST_SAVED = 16.0
#: what an earlier call has seen counts as so many tokens of each position at most
START_WEIGHT = 8.0
#: rounds for which a decision to draft nothing holds, if nothing happens: making it takes a part of a small model's pass
RESTS = 8


class Evidence:
    """How many draft tokens survived at each position, of those whose predecessors did; old rounds fade.

    Attributes:
        reached, kept: by position, sums over rounds of the chance that it was reached and that it was kept.
    """

    def __init__(self, longest: int):
        self.reached, self.kept = [0.0] * longest, [0.0] * longest

    def add(self, acceptance_probs: list[list[float]]) -> None:
        """One round: the mean of `acceptance_probs`, one for each draft."""
        self.reached, self.kept = [n * MEMORY for n in self.reached], [n * MEMORY for n in self.kept]
        for acceptance_prob in acceptance_probs:
            for i, (reached, kept) in enumerate(zip([1.0, *acceptance_prob], acceptance_prob, strict=False)):
                self.reached[i] += reached / len(acceptance_probs)
                self.kept[i] += kept / len(acceptance_probs)

    def faded(self) -> Evidence:
        """The same rates, seen in no more than `START_WEIGHT` tokens."""
        faded, weight = Evidence(len(self.reached)), min(1.0, START_WEIGHT / max(self.reached))
        faded.reached, faded.kept = [n * weight for n in self.reached], [n * weight for n in self.kept]
        return faded

    def rate(self, prior: float = 0.0, weight: float = 0.0) -> float:
        """The share kept over all positions, shrunk towards `prior`."""
        return (sum(self.kept) + weight * prior) / (sum(self.reached) + weight)

    def acceptance_prob(self, rate: float) -> list[float]:
        """s_1, s_2, ...: products of the shares kept at each position, each shrunk towards `rate`."""
        acceptance_probs, acceptance_prob = [], 1.0
        for reached, kept in zip(self.reached, self.kept, strict=True):
            acceptance_prob *= (kept + POSITION_WEIGHT * rate) / (reached + POSITION_WEIGHT)
            acceptance_probs.append(acceptance_prob)
        return acceptance_probs


def expected_tokens(acceptance_probs: list[list[float]], rooms: list[int], longest: int) -> Floats:
    """`(rows, longest + 1)`: what a round brings each row, with drafts of 0, 1, ... tokens or as many as it has room for."""
    kept = np.array(acceptance_probs)[:, :longest]
    kept[np.arange(longest) >= np.array(rooms)[:, None]] = 0.0
    gains = np.ones((len(rooms), longest + 1))
    gains[:, 1:] += kept.cumsum(1)
    return gains


class Adaptive(Schedule):
    """The length with which all rows are expected to be done first, 0 included.

    Args:
        max_tokens: the longest draft.
        costs: of rounds. Default: measured before a pair's first calls and then kept. With given costs, the lengths do not
            depend on the clock.

    Raises:
        ValueError: `max_tokens` is below 1.
    """

    def __init__(self, max_tokens: int = 16, costs: Costs | None = None):
        if max_tokens < 1:
            raise ValueError(f"`max_tokens={max_tokens}` drafts nothing: give 1 or more.")
        self.max_tokens, self.costs = max_tokens, costs
        self.rows: dict[int, Evidence] = {}
        self.all_rows = Evidence(max_tokens)
        self.all_rows.reached[0], self.all_rows.kept[0] = PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_RATE
        self.times: Floats = np.empty((0, max_tokens + 1))
        self.credit = FIRST_CREDIT
        self.can_pay, self.has_drafted, self.are_equal = True, False, False
        self.saved = 0.0
        self.rests_left, self.resting = 0, list[int]()

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.costs = self.costs or costs()
        self.are_equal = len(batch.rows) > 1 and len({*batch.host_padding}) == 1 and not batch.refills
        self._give(min(self.credit, FIRST_SHARE * (batch.max_length - batch.prompt_width)))

    def update_costs(self, costs: Costs) -> None:
        self.costs, self.times = costs, self.times[:0]

    @property
    def learned(self) -> tuple[Evidence, float]:  # type: ignore[override]
        """Of all rows together, and plain steps that calls have saved, less what they lost."""
        return self.all_rows.faded(), min(self.saved, MOST_SAVED)

    @learned.setter
    def learned(self, learned: object) -> None:
        evidence, saved = cast(tuple[Evidence, float], learned)
        self.all_rows = evidence.faded()
        self._give(saved)

    def _give(self, saved: float) -> None:
        """A call begins with as much credit of what is `saved` as one call may lose; the rest is for later ones."""
        self.saved, self.credit = saved, min(saved, FIRST_CREDIT)

    def see(self, batch: Batch) -> None:
        """The rows that the next round is about."""
        for row in self.rows.keys() - {*batch.rows}:  # done; a server's call has no end
            del self.rows[row]
        self.remaining = Remaining(batch)

    def rests(self, batch: Batch) -> bool:
        """Nothing was worth a draft a few rounds ago, and these are the same rows."""
        self.rests_left -= 1
        return self.rests_left >= 0 and not self._may_try() and batch.rows == self.resting

    def rest(self, batch: Batch) -> None:
        self.rests_left, self.resting = RESTS, [*batch.rows]

    def plan(self, batch: Batch) -> list[int]:
        if self.rests(batch):
            return [0] * len(batch.rows)
        self.see(batch)
        rooms = self.rooms(batch)
        longest = min(self.max_tokens, max(rooms))
        gains = expected_tokens([self.acceptance_prob(row) for row in batch.rows], rooms, longest)
        length, _ = self.choose(gains) if longest else (0, 0.0)
        if longest and not length:
            self.rest(batch)
        self.speed = float(gains[:, length].sum() / self.times_of(len(rooms))[-1, length])
        return [min(length, room) for room in rooms]

    def choose(self, gains: Floats) -> tuple[int, float]:
        """The length to draft, and in what time the best one, 0 included, is expected to end the batch.

        Args:
            gains: of `expected_tokens`.
        """
        num_rows, num_lengths = gains.shape
        times = self.times_of(num_rows)[:, :num_lengths]
        seconds = self.remaining.seconds(gains, times)
        seconds[1:] += self.seconds_to_begin(num_rows)
        best = 1 + int(seconds[1:].argmin())
        # A draft that takes longer than what it could bring at best is not worth a try either.
        self.can_pay = bool((np.arange(1, num_lengths + 1) * times[-1, 0] > times[-1])[1:].any())
        pays = seconds[best] < seconds[0] or self._may_try()
        if not pays:
            cost, gain = times[-1, best] / times[-1, 0], gains[:, best].mean()
            tokens = "1 draft token" if best == 1 else f"{best} draft tokens"
            first = "" if self.has_drafted else f", the first of a call {self._steps_to_begin():.0f} more,"
            self.reason = (
                f"a round with {tokens} takes {cost:.1f} plain steps{first} and brings about {gain:.1f} tokens"
            )
        return (best if pays else 0), float(seconds.min())

    def seconds_to_begin(self, num_rows: int) -> float:
        """What drafting takes before it brings anything: nothing, once the call has drafted."""
        return 0.0 if self.has_drafted else self._steps_to_begin() * float(self.times_of(num_rows)[-1, 0])

    def _steps_to_begin(self) -> float:
        return FIRST_DRAFT + UNEQUAL * float(self.remaining.tokens.max()) * self.are_equal

    def _may_try(self) -> bool:
        return self.credit > 0 and self.can_pay

    def acceptance_prob(self, row: int) -> list[float]:
        """The chances of a row that its first, its first two, ... draft tokens are kept."""
        evidence = self._evidence(row)
        return evidence.acceptance_prob(evidence.rate(self.all_rows.rate(), ROW_WEIGHT))

    def update(self, round: Round) -> None:
        rows = zip(round.rows, round.acceptance_prob, strict=True)
        drafts = {row: acceptance_prob[: self.max_tokens] for row, acceptance_prob in rows if acceptance_prob}
        self.credit += CREDIT_A_ROUND
        self.saved += CREDIT_A_ROUND
        if not drafts:
            return
        self.learn(drafts)
        seconds = self.times_of(len(round.rows))[-1, max(map(len, drafts.values()))]
        self.earn([1 + sum(drafts.get(row, [])) for row in round.rows], seconds)

    def learn(self, acceptance_probs: dict[int, list[float]]) -> None:
        """What came of one round's drafts, by row."""
        self.all_rows.add(list(acceptance_probs.values()))
        for row, acceptance_prob in acceptance_probs.items():
            self._evidence(row).add([acceptance_prob])

    def earn(self, gains: list[float], seconds: float) -> None:
        """A round with drafts brought each row so many tokens, and took so long."""
        if not self.has_drafted:
            self.saved -= self._steps_to_begin()
        self.has_drafted = True
        plain = self.times_of(len(gains))[:, 0]
        saved = self.remaining.saved(np.array(gains), plain) - seconds
        self.saved += float(saved / plain[-1])
        self.credit = min(self.credit + float(saved / plain[-1]), MOST_CREDIT)

    def _evidence(self, row: int) -> Evidence:
        return self.rows.setdefault(row, Evidence(self.max_tokens))

    def times_of(self, num_rows: int) -> Floats:
        """`(num_rows, max_tokens + 1)`: times of rounds of 1, 2, ... rows that draft 0, 1, ... tokens."""
        if len(self.times) < num_rows:
            assert self.costs is not None  # `begin` comes before the first plan
            curves = [self.costs.curve(size, self.max_tokens) for size in range(1, num_rows + 1)]
            self.times = np.array(curves)
        return self.times[:num_rows]
