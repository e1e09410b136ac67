"""What was measured, and what follows from it. All figures are of decoding: see `measure.py` for what is timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..call.statistics import Statistics, without_nan
from ..measuring.speedup import Speedup, Work, quartiles
from .cells import Cell
from .pairs import Calibration
from .passes import Passes, theoretical_speedup

STAGES = ("draft", "verify", "accept", "overhead")


@dataclass
class Sample:
    """One repeat of one method: a long `generate` call less a short one, so that prompt and set-up drop out.

    Attributes:
        seconds: time to decode `num_tokens` tokens, all rows together.
        call_seconds: of the whole long call, prompt and set-up included.
        num_rounds: target passes; `None` where they cannot be counted.
        num_row_rounds: the rows of these passes added up; 0 where they cannot be counted.
        num_call_row_rounds: the same of the whole long call.
        num_drafted, num_draft_passes: draft tokens, passes of the draft.
        stages: seconds by stage; `overhead` is everything but drafting, verifying and accepting.
    """

    seconds: float
    call_seconds: float
    num_tokens: int
    num_rounds: int | None = None
    num_row_rounds: int = 0
    num_drafted: int = 0
    num_draft_passes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    num_call_row_rounds: int = 0

    @property
    def decoding(self) -> Work:
        return Work(self.num_tokens, self.seconds, self.num_row_rounds)

    @property
    def whole_call(self) -> Work:
        # Every text has the same length, so that ratios need no more than one number of tokens for all.
        return Work(self.num_tokens, self.call_seconds, self.num_call_row_rounds)


@dataclass
class MethodResult:
    """One method in one cell.

    Attributes:
        samples: one a repeat, in the order of the other methods' samples.
        statistics: of the long calls, for a method of ours.
        peak_bytes: on a GPU, the most that one call had allocated beyond what was there before.
        is_bounded: the number of its target passes bounds its speedup, see `Method`.
        draft_share: bytes that a pass of its head reads over those of a target's pass, where it has a head; theory then takes
            that for its share of the time.
        num_equal_rows: of a greedy peer, the rows whose tokens are plain decoding's.
    """

    name: str
    is_speculative: bool
    is_ours: bool
    batch: int
    samples: list[Sample] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    peak_bytes: int | None = None
    is_bounded: bool = False
    draft_share: float | None = None
    num_equal_rows: int | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second; `None` if a disturbed clock left no repeat with a time."""
        found = [sample.num_tokens / sample.seconds for sample in self.samples if sample.seconds > 0]
        return statistics.median(found) if found else None

    @property
    def drafts_nothing(self) -> bool:
        """A method of ours that drafted no token, since drafts did not pay."""
        return self.is_ours and self.statistics.num_draft_tokens == 0

    @property
    def num_rounds(self) -> int:
        """Target passes of all repeats; 0 where they cannot be counted."""
        return sum(sample.num_rounds or 0 for sample in self.samples)

    @property
    def tokens_per_pass(self) -> float | None:
        """New tokens of a row in a target pass, bonus token included; 1 for plain decoding."""
        return self._total("num_tokens") / (self.batch * self.num_rounds) if self.num_rounds else None

    @property
    def round_seconds(self) -> float | None:
        """Mean over the rounds of all repeats."""
        return self._total("seconds") / self.num_rounds if self.num_rounds else None

    def stage_seconds(self) -> dict[str, float]:
        """Seconds of a mean round, by stage; empty for methods that are not ours."""
        if not self.is_ours or not self.num_rounds:
            return {}
        return {stage: sum(sample.stages[stage] for sample in self.samples) / self.num_rounds for stage in STAGES}

    def stage_spread(self, stage: str) -> tuple[float, float] | None:
        """Quartiles of a stage's seconds in a round, over the repeats; `None` with too few of them."""
        return (
            quartiles([s.stages[stage] / s.num_rounds for s in self.samples if s.num_rounds]) if self.is_ours else None
        )

    @property
    def overhead_share(self) -> float | None:
        """Share of a round that is neither drafting nor verifying."""
        stages = self.stage_seconds()
        return 1 - (stages["draft"] + stages["verify"]) / sum(stages.values()) if stages else None

    def theory(self, passes: Passes, plain_seconds: float | None) -> float | None:
        """Speedup at the measured tokens a round if a round cost only its bare passes, over plain steps of so many seconds.

        For methods of ours that run such passes: compiled and packed ones take another time.
        """
        row_rounds = self._total("num_row_rounds")
        if not (self.is_ours and self.is_bounded) or not self.num_rounds or not row_rounds:
            return None
        return theoretical_speedup(
            tokens_per_round=self._total("num_tokens") / row_rounds,
            draft_passes=self._total("num_draft_passes") / self.num_rounds,
            columns=1 + self._total("num_drafted") / row_rounds,
            passes=self._own(passes),
            plain_seconds=plain_seconds,
        )

    def _own(self, passes: Passes) -> Passes:
        """With the passes of its head in place of the draft's, if it has one."""
        if self.draft_share is None:
            return passes
        num_bytes = round(self.draft_share * passes.target_weight_bytes)
        seconds = [self.draft_share * passes.target_seconds]
        return replace(passes, draft=seconds, draft_weight_bytes=num_bytes, draft_cache_bytes=0)

    def bandwidth(self, passes: Passes) -> float | None:
        """Bytes a second: weights and cache that a round reads, divided by its time."""
        if not self.num_rounds or (self.is_speculative and not self.is_ours):
            return None
        return (
            self._own(passes).bytes_read(self._total("num_draft_passes") / self.num_rounds)
            * self.num_rounds
            / self._total("seconds")
        )

    def _total(self, name: str) -> float:
        return sum(getattr(sample, name) for sample in self.samples)


@dataclass
class CellResult:
    """All methods in one cell.

    Attributes:
        passes: bare passes of the same run; `None` with `no_passes` saying why.
        draft_cache_bytes: keys and values that a draft adds to plain decoding at the end of a call, computed.
    """

    cell: Cell
    methods: dict[str, MethodResult]
    calibration: Calibration | None = None
    passes: Passes | None = None
    no_passes: str | None = None
    draft_cache_bytes: int | None = None

    def speedup(self, name: str, over: str = "plain") -> Speedup | None:
        """How many times faster `name` decodes than `over`, repeat by repeat; `None` where either was not measured."""
        return self._speedup(name, over, lambda sample: sample.decoding)

    def call_speedup(self, name: str, over: str = "plain") -> Speedup | None:
        """The same of whole calls, prompt and set-up included."""
        return self._speedup(name, over, lambda sample: sample.whole_call)

    def _speedup(self, name: str, over: str, work: Callable[[Sample], Work]) -> Speedup | None:
        if name not in self.methods or over not in self.methods:
            return None
        own, other = self.methods[name], self.methods[over]
        pairs = zip(map(work, own.samples), map(work, other.samples), strict=False)
        return Speedup.of(pairs, quartiles, is_bounded=own.is_bounded and over == "plain")

    def theory(self, name: str) -> float | None:
        """Speedup that the bare passes of this cell allow; `None` where they or the method were not measured.

        Over plain decoding as it was measured: what it does beside a pass in each token, a round does once for all its tokens.
        """
        if self.passes is None or name not in self.methods:
            return None
        return self.methods[name].theory(self.passes, self.methods["plain"].round_seconds)

    def efficiency(self, name: str) -> float | None:
        """Measured speedup over theory's; `None` for noise."""
        theory, speedup = self.theory(name), self.speedup(name)
        return speedup.value / theory if theory and speedup and speedup.value else None

    def efficiency_spread(self, name: str) -> tuple[float, float] | None:
        """The same of the speedup's quartiles."""
        theory, speedup = self.theory(name), self.speedup(name)
        return (
            (speedup.spread[0] / theory, speedup.spread[1] / theory) if theory and speedup and speedup.spread else None
        )

    def losses(self, name: str) -> list[str]:
        """The methods that `name` is slower than, beyond noise: plain decoding and, if `name` is ours, any that is not."""
        others = [other.name for other in self.methods.values() if not other.is_ours]
        rivals = others if self.methods[name].is_ours else ["plain"]
        ratios = {rival: self.speedup(name, rival) for rival in rivals}
        return [rival for rival, ratio in ratios.items() if ratio and ratio.is_loss]

    def extra_bytes(self, name: str) -> int | None:
        """Peak memory beyond plain decoding's: measured on a GPU, else the computed size of the draft's cache."""
        own, plain = self.methods[name].peak_bytes, self.methods["plain"].peak_bytes
        if own is not None and plain is not None:
            return own - plain
        has_draft = self.methods[name].is_ours and self.methods[name].draft_share is None
        return self.draft_cache_bytes if has_draft else None

    def to_dict(self, bandwidth: float) -> dict[str, Any]:
        return {
            "cell": asdict(self.cell),
            "calibration": self.calibration and asdict(self.calibration),
            "passes": self.passes and self.passes.to_dict(),
            "no_passes": self.no_passes,
            "methods": {name: self._method_to_dict(name, bandwidth) for name in self.methods},
        }

    def _method_to_dict(self, name: str, bandwidth: float) -> dict[str, Any]:
        method = self.methods[name]
        speedup, call_speedup, over_assisted = (
            self.speedup(name),
            self.call_speedup(name),
            self.speedup(name, "assisted"),
        )
        used = method.bandwidth(self.passes) if self.passes else None
        counts = method.statistics.to_dict() if method.is_ours else None
        if counts is not None:
            del counts["rows"], counts["seconds"]
        return {
            "tokens_per_second": method.tokens_per_second,
            "speedup": speedup and speedup.to_dict(),
            "speedup_over_assisted": over_assisted and over_assisted.to_dict(),
            "whole_call_speedup": call_speedup and call_speedup.to_dict(),
            "losses": self.losses(name),
            "tokens_per_target_pass": method.tokens_per_pass,
            "round_seconds": method.round_seconds,
            "stage_seconds": method.stage_seconds() or None,
            "overhead_share": method.overhead_share,
            "theory": self.theory(name),
            "efficiency": self.efficiency(name),
            "share_of_bandwidth": used and used / bandwidth,
            "num_equal_rows": method.num_equal_rows,
            "extra_peak_bytes": self.extra_bytes(name),
            "statistics": counts,
            "samples": [asdict(sample) for sample in method.samples],
        }


@dataclass
class Report:
    """A whole run.

    Attributes:
        environment: versions, hardware, threads, dtype and the command.
        settings: what all cells share.
        copy_bandwidth: bytes a second of a large copy on the device, read and written.
        is_interrupted: it was stopped; the report has what was measured so far.
        failures: cells that could not be measured, and why.
    """

    pair: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    copy_bandwidth: float
    cells: list[CellResult] = field(default_factory=list)
    is_interrupted: bool = False
    failures: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        names = ("pair", "environment", "settings", "copy_bandwidth", "is_interrupted", "failures")
        own = {name: getattr(self, name) for name in names}
        return without_nan(own | {"cells": [cell.to_dict(self.copy_bandwidth) for cell in self.cells]})
