"""What is known of how long rounds take, what to time next, and whether there is time for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median_low

from ..distributed.tensor_parallel import SingleProcess
from ..types import Costs

#: each is timed until its two best times are as close as this
MAX_REPEATS, CLOSE = 6, 1.1
#: a draft may take so many times what its weights say
CAUTION = 2.0
#: drafts of more tokens are timed only where a round is expected to take at most so many plain steps
LONG, CHEAP = 16, 2.0
#: calls that run plain rounds for comparison: so many first ones, then each so manyth, and none for fewer tokens
FIRST_CALLS, EACH, LONG_CALL = 3, 8, 32
#: so many tries that had time for nothing but plain steps are enough
MOST_VAIN = 8
#: sessions of calls that are kept
MOST_OF_CALLS = 16
#: a round without a draft, as `Session.times` has it
PLAIN = (0, 0)

#: rows, and levels of the tree that is drafted, 0 for a chain
Shape = tuple[int, int]


class Session:
    """Rounds of one batch size that ran one soon after another, so that the machine was as fast for all of them.

    Attributes:
        times: seconds of rounds that drafted so many tokens, by levels of the tree, 0 for a chain, and that number.
        of_call: they were those of a call, which ran anyway.
    """

    def __init__(self, of_call: bool = False):
        self.times: dict[tuple[int, int], list[float]] = {}
        self.of_call = of_call

    def add(self, length: int, seconds: float, num_levels: int = 0) -> None:
        kind = _kind(num_levels, length)
        # Made anew: calls in other threads may be reading.
        self.times = {**self.times, kind: [*self.times.get(kind, ()), seconds]}

    @property
    def plain_step(self) -> float | None:
        plain = self.times.get(PLAIN)
        return median_low(plain) if plain else None

    @property
    def compares(self) -> bool:
        """There are plain steps, and others."""
        return PLAIN in self.times and len(self.times) > 1

    def ratios(self, length: int, num_levels: int = 0) -> list[float]:
        """Of these rounds to a plain step; empty if there was none to compare with."""
        plain_step = self.plain_step
        return [] if plain_step is None else [t / plain_step for t in self.times.get(_kind(num_levels, length), ())]


def _kind(num_levels: int, length: int) -> tuple[int, int]:
    return (num_levels, length) if length else PLAIN


class Timings:
    """Times of rounds of one batch size, by draft length, each held against plain steps of the same session.

    A machine may be half as fast a minute later: what was timed before says how rounds compare, not how long they take.

    Args:
        per_token: what a draft token adds, in plain steps, as long as none was timed.
        lengths: draft lengths to time, the most telling first, 0 among them.
        sessions: those of this batch size, the oldest first.
        num_levels: of the tree that is drafted, 0 for a chain.
        depth: draft tokens that can be kept of one draft, where its length counts the nodes of a tree.
        chains: what is known of chains, where these are trees.

    Attributes:
        can_grow: nothing has shown that rounds of this kind cannot be timed.
    """

    can_grow: bool = True

    def __init__(
        self,
        per_token: float,
        lengths: Sequence[int],
        sessions: list[Session],
        num_levels: int = 0,
        depth: int | None = None,
        chains: Timings | None = None,
    ):
        self.per_token, self.lengths, self.sessions, self.num_levels = per_token, lengths, sessions, num_levels
        self.depth, self.chains = depth, chains

    def ratios(self, length: int) -> list[float]:
        """Of all rounds of a draft length that were timed, in plain steps."""
        return [ratio for session in self.sessions for ratio in session.ratios(length, self.num_levels)]

    def best(self, without: int | None = None) -> dict[int, float]:
        """Seconds by draft length; in plain steps where nothing was timed. Drafting more cannot take less: that is noise.

        Args:
            without: a draft length whose own times do not count.
        """
        timed = {0: 1.0}
        for length in {length for session in self.sessions for _, length in session.times} - {0, without}:
            # The middle one of sessions, and in each of them: as robust as the least, and no better for being timed more often.
            by_session = [
                median_low(of) for session in self.sessions if (of := session.ratios(length, self.num_levels))
            ]
            if by_session:
                timed[length] = max(1.0, median_low(by_session))
        best = {n: min(steps for wider, steps in timed.items() if wider >= n) for n in sorted(timed)}
        if len(best) == 1:
            best[1] = 1 + self.per_token
        return {n: steps * self.plain_step for n, steps in best.items()}

    @property
    def plain_step(self) -> float:
        """As it was last timed."""
        return next((step for session in reversed(self.sessions) if (step := session.plain_step)), 1.0)

    @property
    def are_measured(self) -> bool:
        return bool(self.ratios(0))

    @property
    def are_measured_beyond_plain(self) -> bool:
        return any(self.ratios(n) for n in self.lengths if n)

    def times_of(self, length: int) -> int:
        """How often rounds of a draft length were timed; a plain step, which all are compared with, once less."""
        return len(self.ratios(length)) - (length == 0)

    def wanted(self, num_steps: float) -> int | None:
        """The most telling draft length to time within `num_steps` plain steps; `None` if none fits or all are settled.

        A plain step, which all the others are compared with, is timed once more than they are, and not alone.
        """
        fitting = [n for n in self.lengths if self._is_open(n) and self._expected_steps(n) <= num_steps]
        return min(fitting, key=self.times_of, default=None)

    def _is_open(self, length: int) -> bool:
        if ratios := self.ratios(length):
            fastest, *others = sorted(ratios)
            return self.can_grow and len(others) + 1 < MAX_REPEATS and not (others and others[0] <= CLOSE * fastest)
        # What would not pay by the times of other lengths, its draft accepted whole, need not be known.
        if not self.can_grow or length == 0 or (length > LONG and not self._others(length)):
            return False
        most = 1 + min(length, self.depth or length) if length <= LONG else CHEAP
        return not self._others(length) or self._expected_steps(length) <= most

    def _expected_steps(self, length: int) -> float:
        """Plain steps of a round, by other lengths where they say less: its own times may be those of a bad moment."""
        if length == 0:
            return 1.0
        others = self.best(without=length)
        if self.depth is not None and (wider := [n for n in others if n > length]):
            others = {0: others[min(wider)]}  # the first node of a tree may cost as much as all of them
        by_others = Costs({1: others}).curve(1, length)[length] / self.plain_step
        if self.depth is not None and self.chains is not None and not self._others(length):
            chain = Costs({1: self.chains.best()}).curve(1, self.depth)[self.depth] / self.plain_step
            by_others = (
                max(by_others, chain + self.per_token * length) / CAUTION
            )  # a chain as long takes no more passes
        expected = by_others if self._others(length) else CAUTION * by_others
        return min([expected, *self.ratios(length)])

    def _others(self, length: int) -> list[int]:
        """Other draft lengths that were timed."""
        return [n for n in self.lengths if n not in (0, length) and self.ratios(n)]


class CostTable(dict[Shape, Timings]):
    """What is known of one kind of call.

    Attributes:
        saved: plain steps that measuring may still take, of those that calls asked for.
        sessions: by batch size, the oldest first.
        num_calls: so many have timed their own rounds.
        num_vain, too_few: sessions, one after another, that had time for plain steps only, and the most that was.
    """

    saved: float = 0.0
    num_calls: int = 0
    num_vain: int = 0
    too_few: float = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[int, list[Session]] = {}

    def next_to_time(self, num_rows: int, num_steps: float) -> tuple[int, int] | None:
        """Levels and length of the rounds to time within `num_steps` plain steps: those timed least, chains first."""
        of_size = {num_levels: timings for (size, num_levels), timings in self.items() if size == num_rows}
        wanted = {num_levels: timings.wanted(num_steps) for num_levels, timings in of_size.items()}
        open_ones = [(of_size[levels].times_of(n), levels, n) for levels, n in wanted.items() if n is not None]
        return min(open_ones)[1:] if open_ones else None

    def settle(self, session: Session, num_rows: int, num_steps: float) -> None:
        """A session that was run for its times alone, within `num_steps`, is over; if it tells nothing, it is not kept."""
        if session.compares:
            self.num_vain, self.too_few = 0, 0.0
            return
        self.num_vain, self.too_few = self.num_vain + 1, max(self.too_few, num_steps)
        if len(self.sessions_of(num_rows)) > 1:
            self.sessions_of(num_rows).remove(session)

    def is_vain(self, num_steps: float) -> bool:
        """Whether there was time for nothing but plain steps, again and again: the first ones are slow, say."""
        return self.num_vain >= MOST_VAIN and num_steps <= self.too_few

    def sessions_of(self, num_rows: int) -> list[Session]:
        return self.sessions.setdefault(num_rows, [])

    def compares_next(self, num_tokens: int) -> bool:
        """Whether the next call, for so many new tokens, is to run plain rounds that others are compared with."""
        self.num_calls += 1
        return num_tokens >= LONG_CALL and (self.num_calls <= FIRST_CALLS or self.num_calls % EACH == 0)

    def keep(self, session: Session, num_rows: int) -> None:
        """The latest session, over or not; of those of calls the first ones give way."""
        sessions = self.sessions_of(num_rows)
        if session not in sessions:
            sessions.append(session)
        for older in [other for other in sessions if other.of_call][:-MOST_OF_CALLS]:
            sessions.remove(older)


def costs_of(known: Mapping[Shape, Timings]) -> Costs:
    """What is known, or assumed as long as nothing was measured."""
    chains = {num_rows: timings for (num_rows, num_levels), timings in known.items() if num_levels == 0}
    rounds = {num_rows: timings.best() for num_rows, timings in chains.items() if timings.are_measured}
    for more, fewer in pairwise(sorted(rounds, reverse=True)):  # fewer rows take no longer: the machine was slower then
        scale = min(1.0, rounds[more][0] / rounds[fewer][0])
        rounds[fewer] = {n: scale * seconds for n, seconds in rounds[fewer].items()}
    rounds = {num_rows: _beyond(times) for num_rows, times in rounds.items()}
    trees: dict[int, dict[int, dict[int, float]]] = {}
    for (num_rows, num_levels), timings in known.items():
        if num_levels and timings.are_measured_beyond_plain:
            times = {n: seconds for n, seconds in timings.best().items() if n}
            trees.setdefault(num_rows, {})[num_levels] = times
    return Costs(
        rounds or {num_rows: timings.best() for num_rows, timings in chains.items()},
        {num_rows: by_levels for num_rows, by_levels in trees.items() if len(by_levels) > 1},
    )


def _beyond(times: dict[int, float]) -> dict[int, float]:
    """Drafts longer than any that was timed take half of the mean time of a token more for each, at least.

    Two times that noise has made alike would promise that they take nothing.
    """
    longest, before = sorted(times, reverse=True)[:2]
    least = (times[longest] - times[0]) / longest / 2
    if (times[longest] - times[before]) / (longest - before) >= least:
        return times
    return times | {2 * longest: times[longest] + longest * least}


class Budget:
    """What is left of the time for measuring, by the clock of the first of `ranks`, all of which have to measure alike.

    Args:
        num_steps: the whole of it, in plain steps.
    """

    def __init__(self, num_steps: float, ranks: SingleProcess):
        self.num_steps, self.ranks, self.spent = num_steps, ranks, 0.0
        self.last = self._now()

    def _now(self) -> float:
        return self.ranks.number(time.perf_counter())

    def lap(self, is_spent: bool = True) -> float:
        """Seconds since the last lap."""
        last, self.last = self.last, self._now()
        seconds = self.last - last
        self.spent += seconds * is_spent
        return seconds

    def left(self, plain_step: float) -> float:
        """In plain steps of so many seconds."""
        return self.num_steps - self.spent / plain_step
