"""What the figures are called and how they are written, the same on screen and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from ..measuring.speedup import Speedup, remarks
from ..reports.formats import number, percent, plural, significant, times
from .cells import AXES
from .passes import Passes
from .results import STAGES, CellResult, MethodResult, Report

MEANINGS = {
    "tokens/s": "of decoding, all rows together, without prompt and set-up; median of the repeats.",
    "speedup": "over plain `generate` in the same run: the median of the repeats' ratios; below: their quartiles. `noise` is "
    "more than the counted target passes allow.",
    "over assisted": "the same over transformers' assisted generation at the same draft length.",
    "whole call": "the speedup of whole `generate` calls, with prompt and set-up.",
    "tokens/pass": "new tokens of a row for each pass of the target, its own token included; plain decoding has 1.",
    "accepted": "share of the draft tokens accepted. Below: the mean acceptance length, the target's own token included.",
    "round": "the time of a mean round and of its stages; overhead is everything but the others, `noise` what the "
    "repeats do not tell from nothing.",
    "outside passes": "share of a round that is neither drafting nor verifying.",
    "theory": "tokens a round x P / (k t + T(k+1)): the speedup if a round cost its bare passes alone; P plain's round, T "
    "target, t draft. Not of compiled or packed passes, which are other ones.",
    "efficiency": "measured speedup over theory's, with quartiles; a little beyond 100 % where attention over this package's "
    "cache is faster than in the bare passes.",
    "bandwidth": "weights and cache read a round, over its time, as a share of the speed of a large copy (read and write).",
    "extra memory": "peak beyond plain's, measured, on a GPU; else computed: the draft's cache.",
    "verdict": "ahead or LOSS if three quarters of the repeats say so, else level; none from a single repeat.",
}
#: the settings of a cell where there is little room
SHORT = {
    "batch": "batch {:g}",
    "num_draft_tokens": "{:g} draft tokens",
    "context": "context {:g}",
    "acceptance": "acceptance {:g}",
    "temperature": "temperature {:g}",
}


def rows(cell: CellResult, report: Report) -> list[tuple[str, list[str]]]:
    """The table of a cell: a label, and the figure of each method; rows without any figure are left out."""
    columns = [_column(cell, name, report) for name in cell.methods]
    labels = list(columns[0])
    table = [(label, [column[label] for column in columns]) for label in labels]
    return [(label, figures) for label, figures in table if any(figures)]


def _column(cell: CellResult, name: str, report: Report) -> dict[str, str]:
    method, passes = cell.methods[name], cell.passes
    is_plain = name == "plain"
    speedup, call = cell.speedup(name), cell.call_speedup(name)
    over_assisted = cell.speedup(name, "assisted") if method.is_ours else None
    extra = cell.extra_bytes(name)
    return {
        "tokens/s": significant(method.tokens_per_second),
        "speedup": str(speedup or ""),
        "  quartiles": ""
        if is_plain or not speedup or not speedup.spread
        else "{:.2f} to {:.2f}".format(*speedup.spread),
        "over assisted": str(over_assisted or ""),
        "whole call": str(call or ""),
        "tokens/pass": number(method.tokens_per_pass),
        **_rounds(method),
        "theory": times(cell.theory(name)),
        "efficiency": _efficiency(cell, name),
        "bandwidth": percent(_share_of_bandwidth(method, passes, report)),
        "extra memory": "" if extra is None else f"{extra / 2**20:.1f} MiB",
        "verdict": verdict(cell, name),
    }


def _rounds(method: MethodResult) -> dict[str, str]:
    stages, counts = method.stage_seconds(), method.statistics
    split = {f"  {stage}": _of_stage(method, stage, stages[stage]) if stages else "" for stage in STAGES}
    return {
        "accepted": percent(counts.draft_acceptance_rate, 1) if stages else "",
        "  length": number(counts.mean_acceptance_length) if stages else "",
        "round": milliseconds(method.round_seconds),
        **split,
        "outside passes": percent(method.overhead_share, 1),
    }


def _of_stage(method: MethodResult, stage: str, seconds: float) -> str:
    """A stage's time. It is a difference of two calls', so that a short one may come out at nothing or less: noise."""
    low, _ = method.stage_spread(stage) or (seconds, seconds)
    return milliseconds(seconds) if min(low, seconds) > 0 else "noise"


def _efficiency(cell: CellResult, name: str) -> str:
    spread = cell.efficiency_spread(name)
    return "" if spread is None else f"{percent(cell.efficiency(name))} ({percent(spread[0])} to {percent(spread[1])})"


def _share_of_bandwidth(method: MethodResult, passes: Passes | None, report: Report) -> float | None:
    used = method.bandwidth(passes) if passes else None
    return used / report.copy_bandwidth if used else None


def headline(report: Report) -> str:
    """What was found, in one sentence."""
    found = [(cell, name) for cell in report.cells for name, method in cell.methods.items() if method.is_ours]
    told = [(s, cell, name) for cell, name in found if (s := cell.speedup(name)) is not None and not s.is_noise]
    if not told:
        return "Nothing was measured that could be told from noise."
    best, cell, name = max(told, key=lambda each: each[0].median)
    lost = [f"{other} at {place(where, report.cells)}" for where, other in found if where.losses(other)]
    text = f"{name} decodes {_with_spread(best)} as fast as plain decoding{_at(cell, report)}"
    if not lost:
        return f"{text}; no loss among {plural(len(found), 'measurement')}."
    return f"{text}; a loss in {len(lost)} of {plural(len(found), 'measurement')}: {', '.join(lost)}."


def summary(report: Report) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
    """The methods, and for each cell its label, and of each method the speedup with its quartiles, and the verdict."""
    names = list(dict.fromkeys(name for cell in report.cells for name in cell.methods if name != "plain"))
    lines = []
    for cell in report.cells:
        known = [(name, cell.speedup(name)) for name in names]
        figures = [("", "") if s is None else (_with_spread(s), verdict(cell, name)) for name, s in known]
        lines.append((place(cell, report.cells), figures))
    return names, lines


def _with_spread(speedup: Speedup) -> str:
    return str(speedup) + ("" if speedup.spread is None else " ({:.2f} to {:.2f})".format(*speedup.spread))


def _at(cell: CellResult, report: Report) -> str:
    return f" at {place(cell, report.cells)}" if len(report.cells) > 1 else ""


def place(cell: CellResult, cells: Sequence[CellResult]) -> str:
    """What tells a cell from the others: the settings in which they differ, or the batch where there is one cell."""
    axes = {axis: getattr(cell.cell, axis) for axis in AXES}
    differ = [axis for axis in axes if len({getattr(other.cell, axis) for other in cells}) > 1] or ["batch"]
    return ", ".join(SHORT[axis].format(axes[axis]) for axis in differ if axes[axis] is not None)


def verdict(cell: CellResult, name: str) -> str:
    """In words: ahead, level or a loss, and against what; none from a single repeat."""
    speedup = cell.speedup(name)
    if not cell.methods[name].is_speculative:
        return ""
    if speedup is None or speedup.num_pairs < 2:
        return "none"
    losses = cell.losses(name)
    if losses:
        return f"LOSS to {' and '.join(losses)}"
    if cell.methods[name].drafts_nothing:
        return "nothing drafted"
    if speedup.is_noise:
        return "noise"
    return "ahead" if speedup.is_gain else "level"


def notes(cell: CellResult) -> list[str]:
    """Notes on a cell besides its figures."""
    speedups = {name: cell.speedup(name) for name, method in cell.methods.items() if method.is_speculative}
    found = [r for name, s in speedups.items() for r in remarks(name, s, cell.methods[name].drafts_nothing)]
    if any(method.draft_share is not None for method in cell.methods.values()):
        by_lot = "Heads draft and are verified in earnest, but a coin keeps their tokens, at the acceptance asked for. "
        theirs = "The theory of heads takes a pass of theirs to cost its share of the target's bytes."
        found.append(by_lot * (cell.cell.acceptance is not None) + theirs)
    if any(s is None or s.num_pairs < 2 for s in speedups.values()):
        found.append("A verdict takes two repeats or more: give --repeats 3.")
    for name, method in cell.methods.items():
        if method.num_equal_rows is not None:
            found.append(f"{name}: the tokens of {method.num_equal_rows} of {method.batch} rows are plain decoding's.")
    return found


def title(cell: CellResult) -> str:
    if cell.calibration is None:
        return str(cell.cell)
    reached = f"calibrated: {percent(cell.calibration.acceptance, 1)}"
    return f"{cell.cell} ({reached}, entropy {cell.calibration.entropy:.2f} nats)"


def caption(picture: str) -> str:
    """What a picture shows, by its name."""
    if picture == "round":
        return "Where the time of a mean round goes."
    axis = AXES[picture.removeprefix("speedup_")]
    return f"Speedup over plain decoding by {axis}. Bands: quartiles of the repeats. Dashed: theory. Noise is left out."


def bare_passes(cell: CellResult) -> str:
    if cell.passes is None:
        return f"No bare passes, so no theory: {cell.no_passes}."
    passes, width = cell.passes, cell.passes.num_draft_tokens + 1
    return (
        f"Bare passes: target {milliseconds(passes.target_seconds)}, with {width} columns "
        f"{milliseconds(passes.verify_seconds)}; draft {milliseconds(passes.draft_seconds)}."
    )


def about(report: Report) -> str:
    """Where and what, in one sentence."""
    env, settings = report.environment, report.settings
    parts = (
        f"{report.pair}, {env['dtype']}, {env['device']}, {plural(env['threads'], 'thread')}",
        f"torch {env['torch']}, transformers {env['transformers']}",
        f"{settings['num_new_tokens']} new tokens, {plural(settings['repeats'], 'repeat')}",
        f"copy bandwidth {report.copy_bandwidth / 1e9:.1f} GB/s.",
    )
    return "; ".join(parts)


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{significant(1000 * seconds)} ms"
