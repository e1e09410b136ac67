"""Render suites as the papers' table, suite x temperature x concurrency, for one run or several side by side.

A run is the content of its `--json` file, so runs of other machines are rendered alike.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...call.statistics import Statistics, without_nan
from ...reports.formats import number, percent, plural, significant
from ..results import Evaluation, user_speed
from ..settings import Setting
from . import markdown, wording
from .tables import DASH, Line, Table

#: version of the file format
FORMAT = 1
#: the key of a cell
KEYS = ("suite", "temperature", "concurrency", "setting")
#: the columns of runs side by side
COMPARED = ("mean acceptance length", "tokens/s a user", "tokens/s", "speedup")
#: the content of a run's file
Run = Mapping[str, Any]


def as_run(found: Mapping[str, Evaluation], notes: Iterable[str] = (), by: str | None = None) -> Run:
    """Collect the figures of a run, ready for JSON, with its author, environment and options.

    Args:
        found: the evaluations by place, one or more.
        notes: on the suites.
        by: the author.
    """
    header = next(iter(found.values())).header
    pairs = [(evaluation, setting) for evaluation in found.values() for setting in evaluation.settings]
    cells = [_cell(*pair) for pair in pairs if pair[0].calls[pair[1].name]]
    used = {setting.draft: wording.short(header["drafts"][setting.draft]) for _, setting in pairs if setting.draft}
    about = {
        "target": wording.short(header["target"]),
        "drafts": used,
        "max_new_tokens": header["generate"]["max_new_tokens"],
    }
    about |= {name: header[name] for name in ("is_chat", "optimize", "environment")}
    return without_nan({"format": FORMAT, "by": by, **about, "notes": list(notes), "cells": cells})


def _cell(evaluation: Evaluation, setting: Setting) -> dict[str, Any]:
    header = evaluation.header
    values = (header["dataset"]["name"], setting.temperature, header["batch_size"], setting.label)
    more = {"num_rows": header["num_rows"], "num_compared": len(evaluation.identical(setting))}
    own = evaluation.totals(setting).to_dict() | dict(zip(KEYS, values, strict=True))
    return own | more | {"categories": _by_category(evaluation, setting)}


def _by_category(evaluation: Evaluation, setting: Setting) -> dict[str, dict[str, Any]]:
    """Figures by category, from single prompts, since a batch has prompts of several categories."""
    ours, plain = evaluation.rows(setting), evaluation.rows(setting.baseline)
    members: dict[str, list[int]] = {}
    for index in ours.keys() & plain.keys():
        members.setdefault(evaluation.header["categories"][index] or "", []).append(index)
    found = {}
    for category, indices in sorted(members.items()) if len(members) > 1 else ():
        counts = Statistics()
        for index in indices:
            counts += ours[index].statistics or Statistics()
        speeds = [(user_speed(ours[index]) or 0.0, user_speed(plain[index])) for index in indices]
        ratios = [own / other for own, other in speeds if other]
        found[category] = {
            "num_prompts": len(indices),
            "statistics": {"mean_acceptance_length": counts.mean_acceptance_length},
            "user_tokens_per_second": statistics.median(own for own, _ in speeds),
            "speedup": None if setting.is_plain or not ratios else statistics.median(ratios),
        }
    return found


def load(path: Path) -> Run:
    """Load a run from its file.

    Raises:
        ValueError: the file holds no run.
    """
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["format"] == FORMAT and all(cell.keys() >= {*KEYS} for cell in run["cells"]):
            return run
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{path} is no run of suites in this format: name a file that `bench --suite NAME --json` wrote.")


def about(run: Run) -> str:
    """Who, when, what and where, in one line."""
    env, drafts = run["environment"], ", ".join(run["drafts"].values()) or "no draft model"
    chat = "in its chat template" if run["is_chat"] else "texts continued without a chat template"
    return (
        f"{run['by'] or 'unsigned'}, {env['date']}: {run['target']}, {drafts}, {env['dtype']}, "
        f"{'compiled' if run['optimize'] else 'eager'}, {chat}, up to {run['max_new_tokens']} new tokens; {env['device']}, "
        f"{plural(env['threads'], 'thread')}; torch {env['torch']}, transformers {env['transformers']}, hf_speculative "
        f"{env['hf_speculative']} at {env['commit'] or 'no commit'}."
    )


def tables(run: Run) -> dict[str, Table]:
    """By title: a line for each setting in each cell, its acceptance by position, and its categories."""
    cells, found = run["cells"], {}
    found[""] = _table((cell["suite"], _place(cell) | _figures(cell)) for cell in cells)
    rates = [(cell, (cell["statistics"] or {}).get("per_position_acceptance_rate") or []) for cell in cells]
    by_position = [
        (cell, {str(n): percent(rate) for n, rate in enumerate(known, start=1)}) for cell, known in rates if known
    ]
    found["Acceptance by position"] = _table((cell["suite"], _place(cell) | known) for cell, known in by_position)
    members = [(cell, *member) for cell in cells for member in cell["categories"].items()]
    found["By category"] = _table(
        (f"{cell['suite']}: {name}", _place(cell) | _figures(one)) for cell, name, one in members
    )
    return {title: table for title, table in found.items() if table.lines}


def side_by_side(runs: Sequence[Run]) -> Table:
    """Runs by number: a line for each cell that any of them has."""
    cells = [{tuple(cell[key] for key in KEYS): cell for cell in run["cells"]} for run in runs]
    lines = []
    for key in dict.fromkeys(key for of_run in cells for key in of_run):
        shown = [_figures(of_run[key]) if key in of_run else {} for of_run in cells]
        pairs = [(name, run) for name in COMPARED for run in range(len(runs))]
        figures = {f"{wording.SHORT.get(name, name)} #{run + 1}": shown[run].get(name, "") for name, run in pairs}
        lines.append((str(key[0]), _place(dict(zip(KEYS, key, strict=True))) | figures))
    return _table(lines)


def text(runs: Sequence[Run]) -> str:
    """A run as Markdown: what it is, its tables, its notes and the command; then further ones beside it."""
    lines = [about(runs[0]), ""]
    for title, table in tables(runs[0]).items():
        lines += [*([f"**{title}**", ""] if title else []), *markdown.of_table(table, "suite"), ""]
    lines += [*(f"* {note}" for note in runs[0]["notes"]), "", f"`{runs[0]['environment']['command']}`", ""]
    if len(runs) > 1:
        lines += ["**Side by side**", "", *(f"* #{n}: {about(run)}" for n, run in enumerate(runs, start=1)), ""]
        lines += [*markdown.of_table(side_by_side(runs), "suite"), ""]
    return "\n".join(lines)


def _place(cell: Run) -> dict[str, str]:
    return {"T": f"{cell['temperature']:g}", "concurrency": str(cell["concurrency"]), "setting": str(cell["setting"])}


def _figures(cell: Run) -> dict[str, str]:
    """Of a cell, or of a category in one."""
    first, spread, error = (
        cell.get(name) for name in ("first_seconds", "speedup_interval", "mean_acceptance_length_error")
    )
    none, num_rows = DASH if cell.get("is_too_short") else "", cell.get("num_rows", cell["num_prompts"])
    mean = number((cell["statistics"] or {}).get("mean_acceptance_length"))
    return {
        "prompts": f"{cell['num_prompts']}{'' if num_rows == cell['num_prompts'] else f' of {num_rows}'}",
        "mean acceptance length": (mean if error is None else f"{mean} \u00b1 {error:.2f}") or none,
        "tokens/s a user": significant(cell["user_tokens_per_second"]) or none,
        "tokens/s": significant(cell.get("tokens_per_second")) or none,
        "time to first token": "" if first is None else f"{significant(1000 * first)} ms",
        "speedup": "" if cell["speedup"] is None else f"{cell['speedup']:.2f}x",
        "interval": "" if spread is None else f"{spread[0]:.2f}\u2013{spread[1]:.2f}",
        "identical texts": f"{cell['num_identical']} of {cell['num_compared']}" if cell.get("num_compared") else "",
    }


def _table(lines: Iterable[tuple[str, Mapping[str, str]]]) -> Table:
    """Columns without any figure are left out."""
    lines = list(lines)
    names = dict.fromkeys(name for _, figures in lines for name in figures if figures[name])
    return Table([*names], [Line(label, [figures.get(name, "") for name in names]) for label, figures in lines])
