"""What an evaluation found: totals by setting, and which setting to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..statistics import Statistics
from .journal import BadRow, Call, Difference, Journal, Row, without_nan
from .settings import Setting, temperature_name

#: resamples of the prompts that an interval is made from
NUM_RESAMPLES = 2000
#: below so many batches resampling says nothing
FEWEST_BATCHES = 5


@dataclass(frozen=True)
class Totals:
    """One setting over all its prompts. Rates are quotients of totals, never means of rates.

    Attributes:
        num_prompts: prompts decoded.
        seconds: wall time of its `generate` calls.
        num_identical: texts that equal plain decoding's token for token; `None` for sampling, where only the law is the same.
        speedup: its tokens per second over plain decoding's on the same prompts; `None` for plain decoding.
        speedup_interval: of 2000 resamples of the calls, the middle 95 %: how much the speedup depends on the prompts.
        statistics: counts over all prompts, and times by stage; `None` for plain decoding.
        scores: task scores by name.
    """

    setting: Setting
    num_prompts: int
    num_new_tokens: int
    seconds: float
    num_identical: int | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    statistics: Statistics | None
    scores: dict[str, float | None]

    @property
    def tokens_per_second(self) -> float:
        return self.num_new_tokens / self.seconds if self.seconds else float("nan")

    def to_dict(self) -> dict[str, Any]:
        statistics = self.statistics and self.statistics.to_dict()
        if statistics:
            del statistics["rows"]
        values = {"setting": self.setting.name, "tokens_per_second": self.tokens_per_second, "statistics": statistics}
        return without_nan(vars(self) | values)


@dataclass(frozen=True)
class Recommendation:
    """The fastest setting at one temperature.

    Attributes:
        setting: plain decoding where no draft is faster.
        speedup: over plain decoding; 1 for plain decoding itself.
        runner_up: the next best, and `margin` the ratio of both speedups; `None` without one.
        is_clear: in 95 % of the resamples of the prompts it is ahead of the runner-up, and there are enough of them to say so.
    """

    setting: Setting
    speedup: float
    runner_up: Setting | None
    margin: float | None
    is_clear: bool

    def __str__(self) -> str:
        temperature = temperature_name(self.setting.temperature)
        lead = f'{temperature}: take "{self.setting.label}"'
        if self.setting.is_plain:
            lead = f"{temperature}: decode plainly, no draft is faster here"
        else:
            lead += f", {self.speedup:.2f}x plain decoding"
        if self.runner_up is None or self.margin is None:
            return f"{lead}."
        ahead = f'{self.margin - 1:.1%} faster than the next, "{self.runner_up.label}"'
        doubt = "" if self.is_clear else "; with other prompts of this kind the order may change"
        return f"{lead}, {ahead}{doubt}."


class Evaluation:
    """The results of `evaluate`, or of its file.

    Attributes:
        header: what was evaluated: `target`, `drafts`, `dataset`, `generate`, `environment` and more, ready for JSON.
        settings: in order, plain decoding first at each temperature.
        calls: for each setting's name, the calls of `generate` by number of the batch, but batches that a setting failed on.
        bad_rows: rows of the data set that could not be used, and why.
        differences: where greedy texts leave plain decoding's.
    """

    def __init__(self, journal: Journal):
        self.journal, self.header = journal, journal.header
        self._ratios: dict[Setting, np.ndarray] = {}
        self.bad_rows: list[BadRow] = [row for _, row in sorted(journal.bad_rows.items())]
        self.differences: list[Difference] = list(journal.differences.values())
        self.settings = [Setting(**values) for values in journal.header["settings"]]
        self.calls: dict[str, dict[int, Call]] = {setting.name: {} for setting in self.settings}
        for call in sorted(journal.calls.values(), key=lambda call: call.batch):
            if not any(row.index in journal.bad_rows for row in call.rows):  # one setting failed on them: none counts
                self.calls[call.setting][call.batch] = call

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """The evaluation in a file that `evaluate(results=path)` wrote, finished or not."""
        return cls(Journal.read(Path(path)))

    def __str__(self) -> str:
        """What it recommends, a line a temperature."""
        state = "" if self.is_complete else " (unfinished)"
        return "\n".join([f"{self.header['target']}{state}", *map(str, self.recommendations)])

    @property
    def environment(self) -> dict[str, Any]:
        return self.header["environment"]

    @property
    def is_complete(self) -> bool:
        """Every setting has seen every usable prompt."""
        num_usable = self.header["num_rows"] - len(self.bad_rows)
        return all(sum(len(call.rows) for call in calls.values()) == num_usable for calls in self.calls.values())

    @property
    def temperatures(self) -> list[float]:
        return list(dict.fromkeys(setting.temperature for setting in self.settings))

    def rows(self, setting: Setting) -> dict[int, Row]:
        """What each prompt became under a setting, by the prompt's index."""
        return {row.index: row for call in self.calls[setting.name].values() for row in call.rows}

    def totals(self, setting: Setting) -> Totals:
        """Everything about one setting, plain decoding included.

        The speedup is over the batches that both it and plain decoding have done; in an unfinished run not all have.
        """
        calls = self.calls[setting.name]
        statistics = Statistics()
        for call in calls.values():
            if call.statistics is not None:
                statistics += call.statistics
                statistics.rows += [row.statistics for row in call.rows if row.statistics is not None]
        speedup = interval = None
        if not setting.is_plain and self._common(setting):
            ratios = self._resampled(setting)
            speedup = self._speedup(setting)
            interval = (float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975)))
        return Totals(
            setting=setting,
            num_prompts=sum(len(call.rows) for call in calls.values()),
            num_new_tokens=sum(call.num_new_tokens for call in calls.values()),
            seconds=sum(call.seconds for call in calls.values()),
            num_identical=self._num_identical(setting),
            speedup=speedup,
            speedup_interval=interval,
            statistics=None if setting.is_plain else statistics,
            scores=self.journal.scores.get(setting.name, {}),
        )

    def recommendation(self, temperature: float) -> Recommendation | None:
        """The fastest setting at a temperature; `None` before anything was measured."""
        drafts = [s for s in self.settings if s.temperature == temperature and not s.is_plain and self._common(s)]
        if not drafts:
            return None
        plain = drafts[0].baseline
        speedups = {setting: self._speedup(setting) for setting in drafts} | {plain: 1.0}
        first, second = sorted(speedups, key=lambda setting: -speedups[setting])[:2]
        ahead = self._resampled(first) > self._resampled(second)
        return Recommendation(
            setting=first,
            speedup=speedups[first],
            runner_up=second,
            margin=speedups[first] / speedups[second],
            is_clear=bool(ahead.mean() > 0.95) and len(self._common(first)) >= FEWEST_BATCHES,
        )

    @property
    def recommendations(self) -> list[Recommendation]:
        """The fastest setting at each temperature."""
        found = (self.recommendation(temperature) for temperature in self.temperatures)
        return [recommendation for recommendation in found if recommendation is not None]

    def speedup_of(self, setting: Setting, batch: int) -> float | None:
        """Of one batch, which is one prompt at `batch_size=1`; `None` where one of both calls is missing."""
        call, plain = (self.calls[s.name].get(batch) for s in (setting, setting.baseline))
        if call is None or plain is None:
            return None
        return float(_ratio(_sizes([call]), _sizes([plain])))

    def to_dict(self) -> dict[str, Any]:
        """Header, totals and recommendations, ready for JSON."""
        return {
            **self.header,
            "is_complete": self.is_complete,
            "num_bad_rows": len(self.bad_rows),
            "totals": [self.totals(setting).to_dict() for setting in self.settings],
            "recommendations": [str(recommendation) for recommendation in self.recommendations],
        }

    def is_identical(self, setting: Setting, index: int) -> bool | None:
        """A prompt's text equals plain decoding's, token for token; `None` where that is not promised, or not known."""
        rows, plain = self.rows(setting), self.rows(setting.baseline)
        if not setting.is_exact or setting.is_plain or index not in rows or index not in plain:
            return None
        return rows[index].new_ids == plain[index].new_ids

    def _num_identical(self, setting: Setting) -> int | None:
        if not setting.is_exact or setting.is_plain:
            return None
        rows, plain = self.rows(setting), self.rows(setting.baseline)
        return sum(rows[index].new_ids == plain[index].new_ids for index in rows.keys() & plain.keys())

    def _common(self, setting: Setting) -> list[int]:
        return sorted(self.calls[setting.name].keys() & self.calls[setting.baseline.name].keys())

    def _speedup(self, setting: Setting) -> float:
        sizes, plain = self._sizes(setting)
        return float(_ratio(sizes.sum(0), plain.sum(0)))

    def _sizes(self, setting: Setting) -> tuple[np.ndarray, np.ndarray]:
        """`(batches, 2)` new tokens and seconds of each batch, under the setting and plainly."""
        pairs = [(self.calls[setting.name][b], self.calls[setting.baseline.name][b]) for b in self._common(setting)]
        ours, plain = zip(*pairs, strict=True)
        return np.stack([_sizes([call]) for call in ours]), np.stack([_sizes([call]) for call in plain])

    def _resampled(self, setting: Setting) -> np.ndarray:
        """`(NUM_RESAMPLES,)` speedups over batches drawn with replacement, the same draws for every setting."""
        if setting.is_plain:
            return np.ones(NUM_RESAMPLES)
        if setting not in self._ratios:
            both = np.concatenate(self._sizes(setting), axis=1)
            generator, num_batches = np.random.default_rng(0), len(both)
            # A resample at a time: all at once are gigabytes for tens of thousands of prompts.
            draws = (generator.integers(num_batches, size=num_batches) for _ in range(NUM_RESAMPLES))
            sums = np.stack([both[draw].sum(0) for draw in draws])
            self._ratios[setting] = _ratio(sums[:, :2].T, sums[:, 2:].T)
        return self._ratios[setting]


def _sizes(calls: Sequence[Call]) -> np.ndarray:
    return np.array([sum(call.num_new_tokens for call in calls), sum(call.seconds for call in calls)], dtype=float)


def _ratio(sizes, plain):
    """Ratio of tokens per second."""
    return (sizes[0] / sizes[1]) / (plain[0] / plain[1])
