"""What the figures are called and how they are written, the same on screen and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...reports.formats import number, percent, plural, significant, times
from ..results import Evaluation
from ..settings import Setting, temperature_name
from ..speedup import FEWEST, Speedup, remarks
from ..totals import Totals

MEANINGS = {
    "tokens/s": "new tokens of a generate call over its wall time, prompt and set-up included: the median over the calls.",
    "speedup": "tokens/s over plain decoding's on the same prompts: a ratio for each call, and their median. `noise` is more "
    "than the counted target passes allow: the clock's doing, not the draft's.",
    "95 % interval": "of that median: how much it depends on which prompts these are, and on the clock. It takes "
    f"{FEWEST} calls or more.",
    "acceptance rate": "accepted draft tokens over proposed ones.",
    "mean acceptance length": "new tokens of a round in which something was drafted, the target's own (the bonus token) "
    "included: 1 + accepted / rounds.",
    "target passes": "forward passes of the target; one serves a whole batch. Plain decoding needs one for each token.",
    "identical texts": "texts equal to plain decoding's, token for token. Not asked of sampling, where the distribution is the "
    "same and the texts are not.",
    "chance to be kept": "of a draft token, given the draft: that the target accepts it and the draft tokens before it in its "
    "round. It does not depend on how the coins fell; greedy decoding has no coins, so that it is 1 for what was kept.",
    "acceptance by position": "rounds that kept the draft token at a position, over all rounds with a draft; a shorter draft "
    "counts as not kept.",
}
#: where everything is that a page has no room for
REST = "Figures of every prompt: --csv FILE, or Evaluation.to_pandas('prompt'); the texts: the file of results."
#: the same where there is little room
SHORT = {
    "95 % interval": "interval",
    "acceptance rate": "accepted",
    "mean acceptance length": "length",
    "target passes": "passes",
    "identical texts": "identical",
}


@dataclass(frozen=True)
class Line:
    setting: Setting
    figures: list[str]


@dataclass(frozen=True)
class Table:
    """Settings as rows."""

    columns: list[str]
    lines: list[Line]


def totals(evaluation: Evaluation, found: Sequence[Totals]) -> Table:
    """What each setting brings; columns without any figure are left out."""
    figures = {of_setting.setting: _figures(evaluation, of_setting) for of_setting in found}
    if len({of_setting["prompts"] for of_setting in figures.values()}) == 1:
        for of_setting in figures.values():
            del of_setting["prompts"]
    return _table(figures)


def scores(found: Sequence[Totals]) -> Table:
    """What the task score gives each setting; without columns where there is none."""
    return _table({t.setting: {name: score(value) for name, value in t.scores.items()} for t in found})


def _table(figures: dict[Setting, dict[str, str]]) -> Table:
    names = dict.fromkeys(name for of_setting in figures.values() for name in of_setting)
    columns = [name for name in names if any(of_setting.get(name) for of_setting in figures.values())]
    return Table(
        columns, [Line(s, [of_setting.get(name, "") for name in columns]) for s, of_setting in figures.items()]
    )


def _figures(evaluation: Evaluation, totals: Totals) -> dict[str, str]:
    counts, setting = totals.statistics, totals.setting
    return {
        "prompts": f"{totals.num_prompts}",
        "tokens/s": significant(totals.tokens_per_second),
        "speedup": "" if totals.speedup is None else str(totals.speedup),
        "95 % interval": interval(totals.speedup),
        "acceptance rate": percent(counts.draft_acceptance_rate, 1) if counts else "",
        "mean acceptance length": number(counts.mean_acceptance_length) if counts else "",
        "target passes": f"{sum(call.num_target_passes for call in evaluation.calls[setting.name].values()):,}",
        "identical texts": identical(evaluation, totals),
    }


def notes(found: Sequence[Totals]) -> list[str]:
    """Notes on these settings besides their figures."""
    return [remark for t in found for remark in remarks(t.setting.label, t.speedup, t.drafts_nothing)]


def acceptance_by_position(found: Sequence[Totals]) -> Table:
    """For each position in a round, how often its draft token was kept."""
    rates = {t.setting: t.statistics.per_position_acceptance_rate for t in found if t.statistics}
    width = max(map(len, rates.values()), default=0)
    lines = [Line(setting, [*map(percent, known), *[""] * (width - len(known))]) for setting, known in rates.items()]
    return Table([str(position + 1) for position in range(width)], lines if width else [])


def speedup_by_prompt(evaluation: Evaluation, found: Sequence[Totals]) -> Table:
    """How the speedups of single prompts, or batches, are spread."""
    lines = []
    for setting in (of_setting.setting for of_setting in found if of_setting.speedup is not None):
        values = speedups(evaluation, setting)
        gains = sum(speedup.median > 1 and not speedup.is_noise for speedup in values)
        figures = [_quantile(values, share) for share in (0, 0.25, 0.5, 0.75, 1)]
        lines.append(Line(setting, [*figures, f"{gains:,} of {len(values):,}"]))
    return Table(["slowest", "lower quartile", "median", "upper quartile", "fastest", "faster than plain"], lines)


def _quantile(speedups: list[Speedup], share: float) -> str:
    """Each speedup has a bound of its own, so that a quantile of them is at most that of the bounds."""
    value = float(np.quantile([speedup.median for speedup in speedups], share))
    bounds = [speedup.allowed for speedup in speedups if speedup.allowed is not None]  # all of a setting, or none
    return "noise" if bounds and value > np.quantile(bounds, share) else times(value)


def speedups(evaluation: Evaluation, setting: Setting) -> list[Speedup]:
    """Of each prompt, or batch, that is done under the setting and plainly."""
    return list(evaluation.speedups(setting).values())


def at(evaluation: Evaluation, temperature: float) -> list[Totals]:
    """The totals of each setting at a temperature, which take a while for many prompts."""
    return [evaluation.totals(setting) for setting in evaluation.settings if setting.temperature == temperature]


def title(evaluation: Evaluation) -> str:
    return f"{short(evaluation.header['target'])} on {short(evaluation.header['dataset']['name'])}"


def temperature(value: float) -> str:
    return f"Sampling at {temperature_name(value)}" if value else "Greedy decoding"


def unit(evaluation: Evaluation) -> str:
    """What a single time is measured for: a prompt, or a batch of them."""
    size = evaluation.header["batch_size"]
    return "prompt" if size == 1 else f"batch of {size} prompts"


def about(evaluation: Evaluation) -> str:
    """Where and what, in one sentence or two."""
    header, env = evaluation.header, evaluation.environment
    num_usable = header["num_rows"] - len(evaluation.bad_rows)
    return (
        f"{plural(num_usable, 'prompt')}, up to {header['generate'].get('max_new_tokens', '?')} new tokens each, batch size "
        f"{header['batch_size']}; {header['dtype']} on {env['device']}, {plural(env['threads'], 'thread')}; torch "
        f"{env['torch']}, transformers {env['transformers']}."
    )


def progress(evaluation: Evaluation) -> str:
    """How much of an unfinished evaluation is done; empty for a finished one."""
    if evaluation.is_complete:
        return ""
    done = [sum(len(call.rows) for call in calls.values()) for calls in evaluation.calls.values()]
    num_usable = evaluation.header["num_rows"] - len(evaluation.bad_rows)
    seen = f"{min(done):,}" if min(done) == max(done) else f"{min(done):,} to {max(done):,}"
    return f"Unfinished: of {plural(num_usable, 'prompt')} each setting has seen {seen}. The figures are of those."


def facts(evaluation: Evaluation) -> dict[str, str]:
    """What was evaluated, by name."""
    header = evaluation.header
    dataset = header["dataset"]
    parts = {name: dataset.get(name) for name in ("config", "split", "limit")}
    facts = {
        "target": header["target"],
        **{f"draft {name}": source for name, source in header["drafts"].items()},
        "data set": ", ".join([str(dataset["name"]), *(f"{n} {v}" for n, v in parts.items() if v is not None)]),
        "rows": f"{header['num_rows']:,}, of which {len(evaluation.bad_rows):,} could not be used",
        "generate options": described(header["generate"]) or "none",
        "batch size": header["batch_size"],
        "seed": header["seed"],
    }
    environment = {name: value for name, value in evaluation.environment.items() if value is not None}
    return {name: str(value) for name, value in (facts | environment).items()}


def described(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def differences(evaluation: Evaluation) -> str:
    """What the list of differences is, in words."""
    return (
        f"{plural(len(evaluation.differences), 'text')} that should equal plain decoding's, and the new token (from 0) at "
        "which each leaves it. The logit gap is between the target's two best tokens there: next to nothing where rounding "
        "breaks a tie either way, as in half precision; well above the dtype's rounding it is an error, please report it."
    )


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def identical(evaluation: Evaluation, totals: Totals) -> str:
    if totals.num_identical is None:
        return ""
    setting = totals.setting
    num_known = len(evaluation.rows(setting).keys() & evaluation.rows(setting.baseline).keys())
    return f"{totals.num_identical:,} of {num_known:,}"


def short(source: str) -> str:
    """The last two parts of a path; a name on the Hub is as short already."""
    path = Path(source)
    return str(Path(*path.parts[-2:])) if path.is_absolute() else source


def interval(speedup: Speedup | None) -> str:
    spread = None if speedup is None else speedup.spread
    return "" if spread is None else f"{spread[0]:.2f}\u2013{spread[1]:.2f}"


def score(value: float | None) -> str:
    return number(value, 3) if value is None or abs(value) < 1000 else f"{value:.4g}"


def gap(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
