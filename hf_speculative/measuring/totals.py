"""The totals of one setting."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..call.statistics import RATES, Statistics, without_nan
from .settings import Setting
from .speedup import Speedup

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
        statistics: counts over all prompts, and times by stage; `None` for plain decoding.
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
