"""Speedups from paired measurements.

The same work is done both ways in close succession, several times. Each pair gives a ratio of tokens per second; the speedup is
their median. A busy spell of the machine changes few of the ratios, but would change a ratio of totals.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
