"""Sources of drafts, tried on text that the target writes: what is kept of their drafts, and what speedup that stands for.

No speedup is taken from the clock of these few tokens. Counted are the draft tokens proposed and kept, measured is what a round
of each draft length takes, as for the adaptive draft length; the speedup is what theory makes of both. It is never more
than the tokens of a mean round.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .. import theory

#: fewer rounds than this tell no interval
FEWEST_ROUNDS = 8
#: how often the rounds are drawn again, and the share of these draws that an interval encloses
NUM_DRAWS, SHARE = 400, 0.9
#: "greedy" and "sampled" decoding, as keywords of `generate`
DECODINGS: dict[str, dict[str, Any]] = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True}}


@dataclass(frozen=True)
class Expected:
    """A speedup over plain decoding that theory expects.

    Attributes:
        low, high: the middle 90 % of it over texts and rounds drawn again from those counted; `None` for few rounds. That is
            how much they left to chance; the times of rounds are taken as they were measured.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        spread = " (too few rounds to tell)" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}x{spread}"

    @property
    def is_gain(self) -> bool:
        return self.low is not None and self.low > 1

    @property
    def is_loss(self) -> bool:
        return self.high is not None and self.high <= 1


class Counted(NamedTuple):
    """One row's round: draft tokens proposed and kept, and those of the longest draft beside it, where that is longer."""

    drafted: int
    accepted: int
    beside: int = 0

    @property
    def width(self) -> int:
        """All rows wait for the longest draft."""
        return max(self.drafted, self.beside)


@dataclass(frozen=True)
class Trial:
    """A source of drafts on text that the target wrote.

    Attributes:
        source: its name.
        options: the keywords of `generate` that ask for it; a draft model by its name.
        decoding: "greedy", or "sampled" with the settings of the target's generation config.
        num_tokens: new tokens of the text.
        texts: for each text its rounds, see `Counted`.
        batch_size: texts that were written side by side.
        times: of a round of such a batch that drafts 0, 1, ... tokens, in any unit; empty where nothing was drafted.
        is_timed: they were measured, not assumed from the number of weights.
        is_chain: it drafts chains of a number of tokens that a call may choose.
        draft_share: of these rounds' time, the share that drafting took.
        failure: why it could not be tried.
    """

    source: str
    options: dict[str, Any]
    decoding: str
    num_tokens: int = 0
    texts: tuple[tuple[tuple[int, ...], ...], ...] = ()
    times: tuple[float, ...] = ()
    batch_size: int = 1
    is_timed: bool = True
    is_chain: bool = True
    draft_share: float = 0.0
    failure: str | None = None

    @cached_property
    def rounds(self) -> list[Counted]:
        return [Counted(*round) for text in self.texts for round in text]

    @property
    def drafted(self) -> list[int]:
        return [round.drafted for round in self.rounds]

    @property
    def accepted(self) -> list[int]:
        return [round.accepted for round in self.rounds]

    @property
    def num_drafts(self) -> int:
        """Rounds in which something was drafted."""
        return sum(length > 0 for length in self.drafted)

    @cached_property
    def acceptance(self) -> list[float]:
        """s_1, s_2, ...: the chance that a draft is kept up to each position.

        It is the product of the shares kept there, of the drafts that got so far: one that was cut short and kept whole says
        nothing about what comes after it. (Kaplan and Meier 1958.)
        """
        rates, rate = [], 1.0
        for position in range(1, max(self.drafted if self.is_chain else self.accepted, default=0) + 1):
            reached = [
                kept >= position
                for length, kept, _ in self.rounds
                if kept >= position - 1 and length >= (position if self.is_chain else 1)
            ]
            if not reached:
                break
            rate *= sum(reached) / len(reached)
            rates.append(rate)
        return rates

    @property
    def mean_acceptance_length(self) -> float | None:
        """New tokens of a round that drafts, the target's own included; `None` where none did."""
        return 1 + sum(self.accepted) / self.num_drafts if self.num_drafts else None

    @cached_property
    def draft_length(self) -> int | None:
        """Of chains, the number of draft tokens a round that is expected to be fastest; `None` for those that choose it."""
        if not self.is_chain or not self.num_drafts:
            return None
        return max(range(1, max(self.drafted) + 1), key=lambda length: self._speedup(self.rounds, length))

    @cached_property
    def speedup(self) -> Expected | None:
        """What to expect over plain decoding, at the best draft length; `None` where nothing was drafted."""
        if not self.num_drafts:
            return None
        longest = self.draft_length or max(round.width for round in self.rounds)
        value = self._speedup(self.rounds, longest)
        if len(self.rounds) < FEWEST_ROUNDS:
            return Expected(value)
        draws = [self._speedup(self._drawn_again(random.Random(seed)), longest) for seed in range(NUM_DRAWS)]
        twentieths = statistics.quantiles(draws, n=round(2 / (1 - SHARE)), method="inclusive")
        return Expected(value, min(twentieths[0], value), max(twentieths[-1], value))

    @property
    def cost_of_round(self) -> float | None:
        """Plain steps that a round takes, at the best draft length, or as a mean over those that drafted."""
        if not self.num_drafts:
            return None
        lengths = [self.draft_length] if self.draft_length else [round.width for round in self.rounds if round.drafted]
        return statistics.fmean(self.times[length] for length in lengths) / self.times[0]

    @property
    def cost_of_token(self) -> float | None:
        """Plain steps that drafting one token takes: the measured c of Leviathan et al."""
        if not self.num_drafts:
            return None
        drafting = self.draft_share * sum(self.times[round.width] for round in self.rounds) / self.times[0]
        return drafting / sum(self.drafted)

    @property
    def best_case(self) -> float | None:
        """The speedup if all of each draft were kept; `None` where nothing was drafted."""
        lengths = range(1, max(self.drafted, default=0) + 1) if self.is_chain else sorted({*self.drafted} - {0})
        return max(((length + 1) * self.times[0] / self.times[length] for length in lengths), default=None)

    @property
    def needed_acceptance(self) -> float | None:
        """The chance for each draft token to be kept from which on chains gain; `None` if no chance is enough."""
        if not self.is_chain or not self.best_case or self.best_case <= 1:
            return None
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            gains = [
                theory.expected_tokens(middle, length) * self.times[0] / self.times[length]
                for length in range(1, max(self.drafted) + 1)
            ]
            low, high = (low, middle) if max(gains) > 1 else (middle, high)
        return high

    def _drawn_again(self, chance: random.Random) -> list[Counted]:
        """As many texts and rounds of each, drawn from these with replacement: texts differ more than rounds of one do."""
        texts = chance.choices(self.texts, k=len(self.texts))
        return [Counted(*round) for text in texts for round in chance.choices(text, k=len(text))]

    def _speedup(self, rounds: list[Counted], longest: int) -> float:
        """As if nothing beyond `longest` tokens had been drafted, and other texts took the places of those that are done."""
        widths, accepted = zip(*((min(r.width, longest), min(r.accepted, longest)) for r in rounds), strict=True)
        return theory.speedup_from_rounds(widths, accepted, self.times)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        speedup = self.speedup
        return {
            "source": self.source,
            "options": self.options,
            "decoding": self.decoding,
            "batch_size": self.batch_size,
            "num_new_tokens": self.num_tokens,
            "num_rounds": len(self.drafted),
            "num_spec_steps": self.num_drafts,
            "num_draft_tokens": sum(self.drafted),
            "num_accepted_draft_tokens": sum(self.accepted),
            "mean_acceptance_length": self.mean_acceptance_length,
            "per_position_acceptance_rate": self.acceptance,
            "best_draft_length": self.draft_length,
            "cost_of_draft_token": self.cost_of_token,
            "cost_of_round": self.cost_of_round,
            "costs_are_measured": self.is_timed,
            "expected_speedup": speedup and {"value": speedup.value, "low": speedup.low, "high": speedup.high},
            "failure": self.failure,
        }
