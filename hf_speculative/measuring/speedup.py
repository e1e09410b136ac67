"""How many times faster: from measurements in pairs, and never more than the counted passes allow.

The same work is done both ways, one close after the other, several times. Each pair gives a ratio of tokens per second, and the
speedup is their median. If the machine was busy for a while, few of the ratios change, but a ratio of totals would.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: the least number of pairs for an `interval`
FEWEST = 6
#: where the middle of the ratios lies, lower and upper end; `None` where there are too few of them to say
Spread = Callable[[Sequence[float]], "tuple[float, float] | None"]
#: the names of both spreads, and the least number of pairs that each takes
INTERVAL, QUARTILES = "95 % interval", "quartiles"
FEWEST_OF = {INTERVAL: FEWEST, QUARTILES: 2}


@dataclass(frozen=True)
class Work:
    """Tokens and time of a call, or of a part of one.

    Attributes:
        num_tokens: new tokens of all rows, without padding.
        seconds: wall time.
        num_row_passes: the rows that each target pass carried, added up. Plain decoding carries every row of its batch to the
            end, rows x steps; for speculative decoding it is `Statistics.num_rounds`. 0: unknown.
    """

    num_tokens: int
    seconds: float
    num_row_passes: int = 0


def allowed_by_passes(own: Work, plain: Work) -> float:
    """The largest speedup over plain decoding of the same prompts that the number of passes allows.

    Drafts make passes fewer, never cheaper. Let a plain step of B rows take c. A target pass with b rows left, and drafts in
    them, takes c b / B or more, since rows share what a pass reads. The pass over the prompts takes F >= c either way. S plain
    steps then take F + (S - 1) c, and R row passes F + (R - B) c / B or more. The quotient of these is at most
    max(1, S B / R). Sampled texts may differ in length, hence the quotient of tokens.

    It does not hold for compiled or captured passes, unless plain decoding's are so, too.
    """
    return own.num_tokens / plain.num_tokens * max(1.0, plain.num_row_passes / own.num_row_passes)


def quartiles(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The middle half of a few repeats of one measurement; a single one has no spread."""
    if len(ratios) < 2:
        return None
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, from order statistics, whatever the distribution.

    Each ratio is above the true median with chance 1/2. So the d-th smallest and the d-th largest fail to enclose it with
    chance 2 P(Binomial(n, 1/2) < d). d is the largest for which that is at most 5 %; below `FEWEST` ratios there is none.
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
    """How many times faster one way to decode is than another. As text `1.30x`, or `noise`.

    Attributes:
        median: of the ratios of tokens per second, pair by pair.
        low, high: their spread; `None` with too few pairs.
        allowed: what the counted passes allow, the median over the pairs; `None` if unknown.
        num_pairs: how many pairs there were.
    """

    median: float
    low: float | None
    high: float | None
    allowed: float | None
    num_pairs: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Work, Work]], spread: Spread, is_bounded: bool = True) -> Speedup | None:
        """From pairs of this way and the other; `None` without any that took time.

        Args:
            spread: `quartiles` of repeats of the same work, the `interval` of the median over different work.
            is_bounded: the other way is plain decoding and `allowed_by_passes` holds.
        """
        pairs = [pair for pair in pairs if all(work.num_tokens > 0 and work.seconds > 0 for work in pair)]
        if not pairs:
            return None
        ratios = [_speed(own) / _speed(other) for own, other in pairs]
        allowed = None
        if is_bounded and all(work.num_row_passes for pair in pairs for work in pair):
            # Each ratio has a bound of its own, so that their median is at most the median of the bounds.
            allowed = statistics.median(allowed_by_passes(own, plain) for own, plain in pairs)
        low, high = spread(ratios) or (None, None)
        return cls(statistics.median(ratios), low, high, allowed, len(pairs))

    @property
    def is_noise(self) -> bool:
        """More than the counted passes allow: no speedup, but an effect of the clock or a busy machine."""
        return self.allowed is not None and self.median > self.allowed

    @property
    def can_gain(self) -> bool:
        """The counted passes leave room for a gain."""
        return self.allowed is None or self.allowed > 1

    @property
    def is_gain(self) -> bool:
        """Faster, by more than the spread."""
        return not self.is_noise and self.low is not None and self.low > 1

    @property
    def is_loss(self) -> bool:
        """Slower, by more than the spread."""
        return not self.is_noise and self.high is not None and self.high < 1

    @property
    def spread(self) -> tuple[float, float] | None:
        """The lower and upper end; `None` without one, or if it is noise."""
        return None if self.low is None or self.high is None or self.is_noise else (self.low, self.high)

    @property
    def value(self) -> float | None:
        """The median; `None` if it is noise."""
        return None if self.is_noise else self.median

    def __str__(self) -> str:
        return "noise" if self.is_noise else f"{self.median:.2f}x"

    @property
    def noise_reason(self) -> str:
        """The end of a sentence that explains noise."""
        by_the_clock = f"{self.median:.2f} times plain's tokens per second by the clock"
        return f"{by_the_clock}, where its target passes allow {self.allowed:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the figure of noise is in `measured` only."""
        values = asdict(self) | {"measured": self.median, "is_noise": self.is_noise}
        return values | dict.fromkeys(("median", "low", "high")) if self.is_noise else values


def remarks(name: str, speedup: Speedup | None, drafts_nothing: bool) -> list[str]:
    """Notes on a way to decode besides its figures, a sentence or two each."""
    found = []
    if drafts_nothing:
        found.append(f"{name}: nothing was drafted, so each target pass brought one token, as in plain decoding.")
    if speedup is not None and speedup.is_noise:
        found.append(f"{name}: noise. {speedup.noise_reason}.")
    return found


def _speed(work: Work) -> float:
    return work.num_tokens / work.seconds
