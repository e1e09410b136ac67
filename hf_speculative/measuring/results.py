"""The results of an evaluation: totals of each setting, and recommendations."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..call.statistics import RATES, RowStatistics, Statistics, without_nan
from .journal import BadRow, Call, Difference, Failure, Journal, Row
from .settings import Setting
from .speedup import INTERVAL, QUARTILES, Recommendation, Speedup, interval, quartiles

#: the least number of new tokens for a figure
FEWEST_TOKENS = 200


@dataclass(frozen=True)
class Totals:
    """The totals of one setting over all its prompts. Rates are quotients of total counts, not means of rates.

    Speeds, speedups and rates that would rest on too few tokens are `None`.

    Attributes:
        num_prompts: prompts decoded.
        seconds: wall time of its `generate` calls.
        tokens_per_second: the median over calls, each of one batch; `None` without any.
        num_target_passes: forward passes of the target; 0 if unknown.
        num_identical: texts equal to plain decoding's token for token; `None` for sampling that promises the distribution
            alone.
        num_compared: texts that were decoded both ways and should be equal.
        speedup: over plain decoding, batch by batch; `None` for plain decoding, and before anything was measured.
        statistics: counts over all prompts, and times by stage, with a row for each prompt; `None` for plain decoding.
        scores: task scores by name.
        decoding: the speedup of decoding alone, without the time to the first tokens.
        first_seconds: the time to the first tokens, the median over calls.
        peak_bytes: on a GPU, the most that a call allocated.
        over: the speedup over each rival, by name.
        is_too_short: it has fewer than FEWEST_TOKENS new tokens.
        user_tokens_per_second: new tokens of a prompt over the time until its last one, the median over prompts.
    """

    setting: Setting
    num_prompts: int
    num_new_tokens: int
    seconds: float
    tokens_per_second: float | None
    num_target_passes: int
    num_identical: int | None
    num_compared: int
    speedup: Speedup | None
    statistics: Statistics | None
    scores: dict[str, float | None] = field(default_factory=dict)
    decoding: Speedup | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    over: dict[str, Speedup] = field(default_factory=dict)
    is_too_short: bool = False
    user_tokens_per_second: float | None = None

    @property
    def length_error(self) -> float | None:
        """Half the 95 % interval of the mean acceptance length, a ratio of sums over prompts (Cochran 1977, section 6.3)."""
        rows = [] if self.statistics is None or self.is_too_short else self.statistics.rows
        steps = sum(row.num_spec_steps for row in rows)
        if len(rows) < 2 or not steps:
            return None
        mean = sum(row.num_accepted_draft_tokens for row in rows) / steps
        squares = sum((row.num_accepted_draft_tokens - mean * row.num_spec_steps) ** 2 for row in rows)
        return 1.96 * math.sqrt(squares * len(rows) / (len(rows) - 1)) / steps

    @property
    def drafts_nothing(self) -> bool:
        """Whether no token was drafted although a draft was asked for, since drafts did not pay."""
        return self.speedup is not None and self.statistics is not None and not self.statistics.num_draft_tokens

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        counts = self.statistics and replace(self.statistics, rows=[]).to_dict()
        if counts:
            del counts["rows"]
            counts |= dict.fromkeys(RATES) if self.is_too_short else {}
        values = vars(self) | {"setting": self.setting.name, "statistics": counts}
        if (speedup := self.speedup) is not None:
            values |= {"speedup": speedup.median, "speedup_interval": speedup.spread}
        values["mean_acceptance_length_error"] = self.length_error
        values["decoding"] = self.decoding and asdict(self.decoding)
        values["over"] = {name: asdict(found) for name, found in self.over.items()}
        return without_nan(values)

    def to_row(self) -> dict[str, Any]:
        """The same in one level: lists are left out, counts and scores stand beside the others."""
        values = self.to_dict()
        counts, scores = values.pop("statistics") or {}, values.pop("scores")
        decoding, over = values.pop("decoding") or {}, values.pop("over")
        values["speedup_low"], values["speedup_high"] = values.pop("speedup_interval", None) or (None, None)
        values["decoding_speedup"] = decoding.get("median")
        values |= {f"speedup_over_{name}": found["median"] for name, found in over.items()}
        values |= {name: count for name, count in counts.items() if isinstance(count, (int, float, type(None)))}
        return {"setting": values.pop("setting"), "temperature": self.setting.temperature, **values, **scores}


class Evaluation:
    """The results of `evaluate`, or of its file.

    Attributes:
        header: `target`, `drafts`, `dataset`, `generate`, `environment` and more, ready for JSON.
        settings: in order, plain decoding first at each temperature.
        calls: by setting's name and batch, without batches on which any setting failed.
        bad_rows: rows of the data set that could not be used, and why.
        differences: where greedy texts differ from plain decoding's.
        failures: settings that could not be measured, and why.
    """

    def __init__(self, journal: Journal):
        self.journal, self.header = journal, journal.header
        self.bad_rows: list[BadRow] = [row for _, row in sorted(journal.bad_rows.items())]
        self.differences: list[Difference] = list(journal.differences.values())
        self.failures: list[Failure] = list(journal.failures.values())
        self.settings = [Setting(**values) for values in journal.header["settings"]]
        self.calls: dict[str, dict[int, Call]] = {setting.name: {} for setting in self.settings}
        for call in sorted(journal.calls.values(), key=lambda call: call.batch):
            if not any(row.index in journal.bad_rows for row in call.rows):  # a setting failed on them
                self.calls[call.setting][call.batch] = call

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Load the file that `evaluate(results=path)` wrote, finished or not."""
        return cls(Journal.read(Path(path)))

    def __str__(self) -> str:
        """The recommendations, one line for each temperature."""
        state = "" if self.is_complete else " (unfinished)"
        return "\n".join([f"{self.header['target']}{state}", *map(str, self.recommendations)])

    def __repr__(self) -> str:
        """Target, progress and recommendations."""
        num = len(next(iter(self.calls.values()), ()))
        about = f"{self.header['target']}, {len(self.settings)} settings, {num} batches"
        found = "; ".join(f"{r.headline}: {r.best.label}" for r in self.recommendations)
        return f"<Evaluation of {about}{'' if self.is_complete else ', unfinished'}{f': {found}' if found else ''}>"

    def to_pandas(self):
        """Return a `pandas.DataFrame` with a row for each setting: the numbers of `Totals.to_dict`, counts and scores included.

        The spread of the speedup is in `speedup_low` and `speedup_high`.
        """
        import pandas as pd  # comes with datasets

        return pd.DataFrame([self.totals(setting).to_row() for setting in self.settings]).set_index("setting")

    @property
    def environment(self) -> dict[str, Any]:
        return self.header["environment"]

    @property
    def repeats(self) -> int:
        """How often each prompt is decoded under each setting."""
        return self.header.get("repeats", 1)

    @property
    def spread_name(self) -> str:
        """The kind of spread of speedups: quartiles of repeats and of few texts, else the interval of the median."""
        return self.header.get("spread", QUARTILES if self.repeats > 1 else INTERVAL)

    @property
    def is_complete(self) -> bool:
        """Whether every measurable setting has decoded every usable prompt in every repeat."""
        num_rows = (self.header["num_rows"] - len(self.bad_rows)) * self.repeats
        measured = (self.calls[setting.name].values() for setting in self.settings if not self.failed(setting))
        return all(sum(len(call.rows) for call in calls) == num_rows for calls in measured)

    def failed(self, setting: Setting) -> bool:
        """Whether a setting could not be measured."""
        return setting.name in self.journal.failures

    @property
    def temperatures(self) -> list[float]:
        return list(dict.fromkeys(setting.temperature for setting in self.settings))

    def rows(self, setting: Setting) -> dict[int, Row]:
        """The result for each prompt under a setting, by the prompt's index."""
        return {row.index: row for call in self.calls[setting.name].values() for row in call.rows}

    def totals(self, setting: Setting) -> Totals:
        """Sum up one setting, plain decoding included. Speedups are over batches that both ways decoded."""
        calls = self.calls[setting.name]
        rivals = [s for s in self.settings if s.rival and setting.is_ours and s.temperature == setting.temperature]
        over = {rival.label: self._speedup(setting, rival) for rival in rivals}
        is_too_short, identical = self.is_too_short(setting), self.identical(setting)
        counts, of_prompts = Statistics(), defaultdict[int, RowStatistics](RowStatistics)
        for call in calls.values():
            if call.statistics is not None:
                counts += replace(call.statistics, rows=[])
                for row in call.rows:
                    if row.statistics is not None:
                        of_prompts[row.index] += row.statistics
        counts.rows = [*of_prompts.values()]
        speeds = [call.num_new_tokens / call.seconds for call in calls.values() if call.seconds > 0]
        return Totals(
            setting=setting,
            num_prompts=len(self.rows(setting)),
            num_new_tokens=sum(call.num_new_tokens for call in calls.values()),
            seconds=sum(call.seconds for call in calls.values()),
            tokens_per_second=statistics.median(speeds) if speeds and not is_too_short else None,
            num_target_passes=sum(call.num_target_passes for call in calls.values()),
            num_identical=sum(identical.values()) if setting.is_exact and not setting.is_plain else None,
            num_compared=len(identical),
            speedup=self._speedup(setting),
            statistics=counts if setting.is_ours else None,
            scores=self.journal.scores.get(setting.name, {}),
            decoding=self._speedup(setting, of_decoding=True),
            first_seconds=_median(call.first_seconds for call in calls.values()),
            peak_bytes=max((call.peak_bytes for call in calls.values() if call.peak_bytes is not None), default=None),
            over={name: found for name, found in over.items() if found is not None},
            is_too_short=is_too_short,
            user_tokens_per_second=None if is_too_short else _median(map(user_speed, self.rows(setting).values())),
        )

    def is_too_short(self, setting: Setting) -> bool:
        """Whether its texts, or plain decoding's, have fewer new tokens than a figure has to rest on."""
        fewest = self.header.get("fewest_tokens", 0)
        measured = [calls for s in (setting, setting.baseline) if (calls := self.calls.get(s.name))]
        return any(sum(call.num_new_tokens for call in calls.values()) < fewest for calls in measured)

    def recommendation(self, temperature: float) -> Recommendation | None:
        """Which setting to use at a temperature; `None` before anything was measured."""
        drafts = [s for s in self.settings if s.temperature == temperature and s.is_ours]
        speedups = {setting: found for setting in drafts if (found := self._speedup(setting)) is not None}
        return Recommendation.of(speedups, self._speedup, self.spread_name) if speedups else None

    @property
    def recommendations(self) -> list[Recommendation]:
        """Which setting to use at each temperature."""
        return [found for temperature in self.temperatures if (found := self.recommendation(temperature)) is not None]

    def to_dict(self) -> dict[str, Any]:
        """Header, totals and recommendations, ready for JSON."""
        return {
            **self.header,
            "is_complete": self.is_complete,
            "num_bad_rows": len(self.bad_rows),
            "failures": {failure.setting: failure.message for failure in self.failures},
            "totals": [self.totals(setting).to_dict() for setting in self.settings],
            "recommendations": [str(recommendation) for recommendation in self.recommendations],
        }

    def identical(self, setting: Setting) -> dict[int, bool]:
        """For each prompt done both ways, whether all its texts equal plain decoding's; empty where that is not promised."""
        found: dict[int, bool] = {}
        if setting.is_exact and not setting.is_plain:
            for ours, plain in self._done_both_ways(setting, setting.baseline):
                for row, expected in zip(ours.rows, plain.rows, strict=True):
                    found[row.index] = found.get(row.index, True) and row.new_ids == expected.new_ids
        return found

    def _speedup(self, setting: Setting, other: Setting | None = None, of_decoding: bool = False) -> Speedup | None:
        """Over another setting, by default plain decoding, of whole calls or of decoding alone."""
        other = setting.baseline if other is None else other
        if setting == other or self.is_too_short(setting) or self.is_too_short(other):
            return None
        spread = quartiles if self.spread_name == QUARTILES else interval
        calls = self._done_both_ways(setting, other)
        pairs = [(ours.decoding, theirs.decoding) if of_decoding else (ours.work, theirs.work) for ours, theirs in calls]
        return Speedup.of(((own, others) for own, others in pairs if own is not None and others is not None), spread)

    def _done_both_ways(self, setting: Setting, other: Setting) -> list[tuple[Call, Call]]:
        """The calls of both settings for each batch that both have done."""
        theirs = self.calls.get(other.name, {})
        return [(call, theirs[batch]) for batch, call in self.calls[setting.name].items() if batch in theirs]


def user_speed(row: Row) -> float | None:
    """New tokens of a row over the seconds until its last one."""
    return len(row.new_ids) / row.seconds if row.seconds else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
