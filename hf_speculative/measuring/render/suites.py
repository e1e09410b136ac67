"""Render suites as the papers' table, suite x temperature x concurrency, for one run or several side by side.

A run is the content of its `--json` file, so runs of other machines are rendered alike.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...call.statistics import Statistics, without_nan
from ...reports.formats import plural
from ..results import Evaluation, user_speed
from ..settings import Setting
from ..speedup import INTERVAL
from . import wording
from .result_table import Line, Table, by_position, figures, of_table, tone_of

#: version of the file format
FORMAT = 1
#: the key of a cell
KEYS = ("suite", "temperature", "concurrency", "setting")
#: the columns of runs side by side
COMPARED = ("mean acceptance length", "tokens/s a user", "tokens/s", "speedup")
#: the content of a run's file
Run = Mapping[str, Any]


def as_run(found: Mapping[Any, Evaluation], notes: Iterable[str] = (), by: str | None = None) -> Run:
    """Collect the figures of a run, ready for JSON, with its author, environment and options.

    Args:
        found: the evaluations by place, one or more.
        notes: on the suites.
        by: the author.
    """
    first = next(iter(found.values()))
    header = first.header
    pairs = [(evaluation, setting) for evaluation in found.values() for setting in evaluation.settings]
    cells = [_cell(*pair) for pair in pairs if pair[0].calls[pair[1].name]]
    used = {setting.draft: wording.short(header["drafts"][setting.draft]) for _, setting in pairs if setting.draft}
    about = {
        "target": wording.short(header["target"]),
        "drafts": used,
        "max_new_tokens": header["generate"]["max_new_tokens"],
        "spread": first.spread_name,
    }
    about |= {name: header[name] for name in ("is_chat", "optimize", "environment")}
    return without_nan({"format": FORMAT, "by": by, **about, "notes": list(notes), "cells": cells})


def _cell(evaluation: Evaluation, setting: Setting) -> dict[str, Any]:
    header = evaluation.header
    values = (header["dataset"]["name"], setting.temperature, header["batch_size"], setting.label)
    own = evaluation.totals(setting).to_dict() | dict(zip(KEYS, values, strict=True))
    return own | {"num_rows": header["num_rows"], "categories": _by_category(evaluation, setting)}


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
        num_tokens = min(sum(len(rows[index].new_ids) for index in indices) for rows in (ours, plain))
        is_told = num_tokens >= evaluation.header.get("fewest_tokens", 0)
        found[category] = {
            "num_prompts": len(indices),
            "statistics": {"mean_acceptance_length": counts.mean_acceptance_length if is_told else None},
            "user_tokens_per_second": statistics.median(own for own, _ in speeds) if is_told else None,
            "speedup": statistics.median(ratios) if is_told and ratios and not setting.is_plain else None,
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
    cells, spread_name = run["cells"], run.get("spread", INTERVAL)
    rates = [(cell, by_position(cell)) for cell in cells]
    categories = [(cell, name, one) for cell in cells for name, one in cell["categories"].items()]
    found = {
        "": Table([_line(cell, figures(cell, spread_name)) for cell in cells]),
        "Acceptance by position": Table([_line(cell, known) for cell, known in rates if known]),
        "By category": Table([_line(cell, figures(one, spread_name), f": {name}") for cell, name, one in categories]),
    }
    return {title: table for title, table in found.items() if table.lines}


def side_by_side(runs: Sequence[Run]) -> Table:
    """Runs by number: a line for each cell that any of them has."""
    numbers = range(1, len(runs) + 1)
    columns = {(name, n): f"{wording.SHORT.get(name, name)} #{n}" for name in COMPARED for n in numbers}
    lines: dict[tuple, tuple[Run, dict[str, str]]] = {}
    for number, run in zip(numbers, runs, strict=True):
        for cell in run["cells"]:
            key, shown = tuple(cell[name] for name in KEYS), figures(cell, INTERVAL)
            _, found = lines.setdefault(key, (cell, dict.fromkeys(columns.values(), "")))
            found |= {columns[name, number]: shown[name] for name in COMPARED}
    return Table([_line(cell, found) for cell, found in lines.values()])


def text(runs: Sequence[Run]) -> str:
    """A run as Markdown: what it is, its tables, its notes and the command; then further ones beside it."""
    lines = [about(runs[0]), ""]
    for title, table in tables(runs[0]).items():
        lines += [*([f"**{title}**", ""] if title else []), *of_table(table, "suite"), ""]
    lines += [*(f"* {note}" for note in runs[0]["notes"]), "", f"`{runs[0]['environment']['command']}`", ""]
    if len(runs) > 1:
        lines += ["**Side by side**", "", *(f"* #{n}: {about(run)}" for n, run in enumerate(runs, start=1)), ""]
        lines += [*of_table(side_by_side(runs), "suite"), ""]
    return "\n".join(lines)


def _line(cell: Run, found: dict[str, str], part: str = "") -> Line:
    place = {"T": f"{cell['temperature']:g}", "concurrency": f"{cell['concurrency']}", "setting": f"{cell['setting']}"}
    tone = tone_of(None if part else cell.get("speedup_interval"))
    return Line(f"{cell['suite']}{part}", place | found, tone=tone)
