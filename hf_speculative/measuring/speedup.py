"""Speedups from paired measurements, and what they recommend.

The same work is done both ways in close succession, several times. Each pair gives a ratio of tokens per second; the speedup is
their median. A busy spell of the machine changes few of the ratios, but would change a ratio of totals.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..reports.formats import percent
from .settings import Setting, temperature_name

#: the least number of pairs for an `interval`
FEWEST = 6
#: lower and upper end of the middle of the ratios; `None` with too few of them
Spread = Callable[[Sequence[float]], "tuple[float, float] | None"]
#: the names of both spreads, and the least number of pairs of each
INTERVAL, QUARTILES = "95 % interval", "quartiles"
FEWEST_OF = {INTERVAL: FEWEST, QUARTILES: 2}


@dataclass(frozen=True)
class Work:
    """Tokens and time of a call, or of a part of one.

    Attributes:
        num_tokens: new tokens of all rows, without padding.
        seconds: wall time.
    """

    num_tokens: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


def quartiles(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The lower and upper quartile of a few repeats; `None` for a single one."""
    if len(ratios) < 2:
        return None
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The distribution-free 95 % confidence interval of the median, from order statistics.

    Each ratio is above the true median with probability 1/2. So the d-th smallest and d-th largest fail to enclose it with
    probability 2 P(Binomial(n, 1/2) < d). d is the largest for which that is at most 5 %; below `FEWEST` ratios there is none.
    (David and Nagaraja, Order Statistics, 2003, section 7.1.)
    """
    num, d, tail = len(ratios), 0, 0.5 ** len(ratios)
    while tail <= 0.025:
        d += 1
        tail += math.exp(math.lgamma(num + 1) - math.lgamma(d + 1) - math.lgamma(num - d + 1) - num * math.log(2))
    ordered = sorted(ratios)
    return (ordered[d - 1], ordered[num - d]) if d else None


@dataclass(frozen=True)
class Speedup:
    """The speedup of one way to decode over another. As text `1.30x`.

    Attributes:
        median: of the ratios of tokens per second of all pairs.
        spread: the lower and upper end of their spread; `None` with too few pairs.
        num_pairs: the number of pairs.
    """

    median: float
    spread: tuple[float, float] | None
    num_pairs: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Work, Work]], spread: Spread) -> "Speedup | None":
        """From pairs of this way and the other; `None` without a pair that took time.

        Args:
            spread: `quartiles` for repeats of the same work, `interval` for different work.
        """
        pairs = [pair for pair in pairs if all(work.num_tokens > 0 and work.seconds > 0 for work in pair)]
        if not pairs:
            return None
        ratios = [own.speed / other.speed for own, other in pairs]
        return cls(statistics.median(ratios), spread(ratios), len(pairs))

    @property
    def is_gain(self) -> bool:
        """Whether it is faster by more than the spread."""
        return self.spread is not None and self.spread[0] > 1

    @property
    def is_loss(self) -> bool:
        """Whether it is slower by more than the spread."""
        return self.spread is not None and self.spread[1] < 1

    def __str__(self) -> str:
        return f"{self.median:.2f}x"


@dataclass(frozen=True)
class Recommendation:
    """The recommended setting at one temperature.

    Attributes:
        setting: a draft that is clearly faster than plain decoding; plain decoding if all drafts are slower; `None` if the
            figures do not tell.
        best: the draft with the highest speedup, of those that are clearly faster if any is; `speedup` is its own.
        runner_up: the next best draft that is clearly faster; `lead` is the speedup of `best` over it. `None` without one.
        spread_name: the kind of spread of the speedups.
    """

    setting: Setting | None
    best: Setting
    speedup: Speedup
    runner_up: Setting | None = None
    lead: Speedup | None = None
    spread_name: str = INTERVAL

    @classmethod
    def of(
        cls, speedups: Mapping[Setting, Speedup], lead: Callable[[Setting, Setting], Speedup | None], spread_name: str
    ) -> "Recommendation":
        """Recommend from the speedups of one temperature's drafts, one or more.

        Args:
            lead: the speedup of one draft over another, on batches that both decoded.
        """
        ranked = sorted(speedups, key=lambda setting: speedups[setting].median, reverse=True)
        gains = [setting for setting in ranked if speedups[setting].is_gain]
        if gains:
            best, runner_up = gains[0], next(iter(gains[1:]), None)
            ahead = None if runner_up is None else lead(best, runner_up)
            return cls(best, best, speedups[best], runner_up, ahead, spread_name)
        best, loses = ranked[0], all(found.is_loss for found in speedups.values())
        return cls(best.baseline if loses else None, best, speedups[best], spread_name=spread_name)

    @property
    def is_gain(self) -> bool:
        """Whether a draft is recommended."""
        return self.setting == self.best

    @property
    def is_clear(self) -> bool:
        """Whether no other setting may be as fast."""
        return self.setting is not None and (self.runner_up is None or (self.lead is not None and self.lead.is_gain))

    @property
    def headline(self) -> str:
        """The expected speedup with its interval, in a few words."""
        if self.setting is None:
            return "undecided"
        return self._figure if self.is_gain else "plain"

    @property
    def _figure(self) -> str:
        spread = self.speedup.spread
        return str(self.speedup) if spread is None else f"{self.speedup} ({spread[0]:.2f} to {spread[1]:.2f})"

    @property
    def advice(self) -> str:
        """The recommendation in a sentence or two."""
        speedup, best = self.speedup, f'"{self.best.label}"'
        if self.is_gain:
            taken = f"{best}, {self._figure} plain decoding"
            rival = f'"{self.runner_up.label}"' if self.runner_up else ""
            if not self.is_clear:
                return f"a draw: take {taken}, or {rival}; the figures do not tell which."
            ahead = f", {percent(self.lead.median - 1, 1)} faster than the next, {rival}" if self.lead else ""
            return f"take {taken}{ahead}."
        if self.setting is not None:
            return f"decode plainly, no draft is faster here; the best, {best}, is at {speedup} plain decoding."
        if speedup.spread is None:
            few = f"too few batches to tell, {speedup.num_pairs} where it takes {FEWEST_OF[self.spread_name]}"
            return f"{few}; so far {best} is at {speedup} plain decoding."
        low, high = speedup.spread
        verdict = "no recommendation" if speedup.is_loss else "too close to tell"
        spread = f"a {self.spread_name}" if self.spread_name == INTERVAL else self.spread_name
        return f"{verdict}: {best} is at {speedup} plain decoding, with {spread} of {low:.2f} to {high:.2f}."

    def __str__(self) -> str:
        return f"{temperature_name(self.best.temperature)}: {self.advice}"
