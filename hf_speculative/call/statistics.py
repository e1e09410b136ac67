"""Statistics of speculation under vLLM's names, counted from `Round`s; the loop does not know of them."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ..types import Round

STAGES = ("draft", "verify", "accept", "rest")
PASSES = ("num_calls", "num_target_forwards", "num_draft_forwards")
COUNTS = ("num_rounds", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_rejections")


@dataclass
class RowStatistics:
    """Counts of one sequence. Rates are quotients of counts, so that adding rows up never averages means.

    Attributes:
        num_rounds: target passes that brought this row tokens, the prompt's own pass included. Accepted draft tokens plus
            rounds is the number of new tokens, always.
        num_spec_steps: rounds in which something was drafted.
        num_draft_tokens: tokens proposed.
        num_rejections: steps that kept less than was drafted, without a stop in between; of trees, all that branched.
        num_accepted_draft_tokens: draft tokens kept. Where a stop cuts a block inside its accepted tokens, the last one kept
            counts as the round's own token.
        histogram: for each number of accepted tokens, how many speculative steps accepted as many.
    """

    num_rounds: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_rejections: int = 0
    histogram: Counter = field(default_factory=Counter)

    def __iadd__(self, other: RowStatistics) -> RowStatistics:
        for name in (*COUNTS, "histogram"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def num_new_tokens(self) -> int:
        return self.num_accepted_draft_tokens + self.num_rounds

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens; nan where nothing was proposed."""
        return _quotient(self.num_accepted_draft_tokens, self.num_draft_tokens)

    @property
    def token_acceptance_rate(self) -> float:
        """Chance that a draft token is accepted once reached: the papers' alpha, taken as equal for all; of chains alone."""
        return _quotient(self.num_accepted_draft_tokens, self.num_accepted_draft_tokens + self.num_rejections)

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens in a speculative step, **bonus token included**: 1 + accepted / steps."""
        return 1 + _quotient(self.num_accepted_draft_tokens, self.num_spec_steps)

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry i: speculative steps that accepted i draft tokens."""
        return [self.histogram[i] for i in range(max(self.histogram, default=-1) + 1)]

    @property
    def per_position_acceptance_rate(self) -> list[float]:
        """Entry i: steps that accepted draft token i + 1, over all steps (unconditional)."""
        counts = self.acceptance_histogram
        return [sum(counts[i:]) / self.num_spec_steps for i in range(1, len(counts))]

    def add_round(self, num_drafted: int, num_accepted: int, is_cut: bool) -> None:
        """One round of a row; `is_cut`: a stop ended it inside its accepted draft tokens."""
        self.num_rounds += 1
        if num_drafted:
            self.num_spec_steps += 1
            self.num_draft_tokens += num_drafted
            self.num_accepted_draft_tokens += num_accepted
            self.num_rejections += num_accepted < num_drafted and not is_cut
            self.histogram[num_accepted] += 1

    @classmethod
    def from_dict(cls, values: dict) -> RowStatistics:
        """The inverse of `to_dict`."""
        counts = {name: values[name] for name in COUNTS}
        return cls(**counts, histogram=Counter({i: n for i, n in enumerate(values["acceptance_histogram"]) if n}))

    def to_dict(self) -> dict:
        """Counts and rates, ready for JSON (nan becomes None)."""
        names = ("num_new_tokens", *COUNTS, *RATES, "acceptance_histogram")
        return without_nan({name: getattr(self, name) for name in names})


#: of `RowStatistics.to_dict`, what is no count
RATES = ("draft_acceptance_rate", "token_acceptance_rate", "mean_acceptance_length", "per_position_acceptance_rate")


def without_nan(value: Any) -> Any:
    """The same with null for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {str(name): without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _quotient(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else float("nan")


@dataclass
class Statistics(RowStatistics):
    """Counts over all rows of one call, or of many.

    Attributes:
        rows: the counts of each sequence, in order.
        num_calls: calls of `generate`.
        num_target_forwards, num_draft_forwards: model passes; one pass serves a whole batch.
        seconds: wall time by stage: `draft`, `verify`, `accept` and `rest`; `total` is their sum.
        reason: why nothing was drafted, where nothing was and the schedule decided so.
    """

    rows: list[RowStatistics] = field(default_factory=list)
    num_calls: int = 0
    num_target_forwards: int = 0
    num_draft_forwards: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    reason: str | None = None

    def __iadd__(self, other: RowStatistics) -> Statistics:
        super().__iadd__(other)
        if isinstance(other, Statistics):
            self.rows += other.rows  # in place: many calls add up without copying what is there
            for name in PASSES:
                setattr(self, name, getattr(self, name) + getattr(other, name))
            for stage, seconds in other.seconds.items():
                self.seconds[stage] += seconds
            self.reason = None if self.num_draft_tokens else other.reason or self.reason
        return self

    def follow(self, round: Round) -> None:
        """Adds one round to the counts."""
        counts = zip(round.rows, round.num_drafted, round.num_accepted, round.is_cut, strict=True)
        for row, drafted, accepted, is_cut in counts:
            while len(self.rows) <= row:
                self.rows.append(RowStatistics())
            self.rows[row].add_round(drafted, accepted, is_cut)
            self.add_round(drafted, accepted, is_cut)

    @classmethod
    def from_dict(cls, values: dict) -> Statistics:
        rows = [RowStatistics.from_dict(row) for row in values.get("rows", [])]
        seconds = {stage: values["seconds"][stage] for stage in STAGES}
        counts = vars(RowStatistics.from_dict(values)) | {name: values[name] for name in PASSES}
        return cls(**counts, rows=rows, seconds=seconds, reason=values.get("reason"))

    def to_dict(self) -> dict:
        passes = {name: getattr(self, name) for name in PASSES}
        seconds = self.seconds | {"total": sum(self.seconds.values())}
        rows = [row.to_dict() for row in self.rows]
        return super().to_dict() | passes | {"seconds": seconds, "reason": self.reason, "rows": rows}


class Stopwatch:
    """Wall time by stage: each lap ends one. On a GPU the laps are measured there, by events, without waiting for it."""

    def __init__(self, device: torch.device):
        self.device, self.on_gpu = device, device.type == "cuda"
        self.start = time.perf_counter()
        self.marks: list[tuple[str, Any]] = [("", self._now())]

    def lap(self, stage: str) -> None:
        """`stage` took the time since the last lap."""
        self.marks.append((stage, self._now()))

    def seconds(self) -> dict[str, float]:
        """Seconds by stage since the start; `rest` is what no stage took."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        total = time.perf_counter() - self.start
        by_stage = dict.fromkeys(STAGES, 0.0)
        for (_, start), (stage, end) in pairwise(self.marks):
            by_stage[stage] += start.elapsed_time(end) / 1000 if self.on_gpu else end - start
        by_stage["rest"] = max(0.0, total - sum(by_stage[stage] for stage in STAGES[:-1]))
        return by_stage

    def _now(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


_recorders: list[Statistics] = []
_lock = threading.Lock()


@contextmanager
def record() -> Iterator[Statistics]:
    """Collect the statistics of every speculative call while it is open, from any caller and any thread.

    with hf_speculative.record() as stats:
        pipe(prompts, batch_size=8)
    print(stats.mean_acceptance_length)
    """
    statistics = Statistics()
    with _lock:
        _recorders.append(statistics)
    try:
        yield statistics
    finally:
        with _lock:
            _recorders[:] = [other for other in _recorders if other is not statistics]


def publish(statistics: Statistics) -> None:
    """Gives one call's counts to every open `record()`."""
    with _lock:
        for recorder in _recorders:
            recorder += statistics
