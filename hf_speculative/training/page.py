"""The report of a run of training: the page that all commands share, with a learning curve."""

from __future__ import annotations

from pathlib import Path

from ..measuring.render import plots
from ..measuring.render.page import Picture, Report
from ..reports import pages, plotting
from . import wording
from .results import Trained


def write(result: Trained, path: Path) -> None:
    """Write the learning curve, acceptance before and after, and how it was trained."""
    environment = {name: str(value) for name, value in result.environment.items() if value is not None}
    Report(
        wording.title(result),
        "training",
        [wording.summary(result)],
        "How it was trained, and where",
        wording.facts(result) | environment,
        wording.MEANINGS,
        result.to_dict(),
        result.notes,
        _pictures(result) if plotting.is_available() else [],
        {
            "Acceptance on held-out prompts": wording.acceptance(result),
            "Acceptance length by step": wording.curve(result),
        },
    ).write(path)


def _pictures(result: Trained) -> list[Picture]:
    found: dict[str, tuple[str, str]] = {}
    if result.curve:
        names = {way: wording.way_name(result, way) for way in wording.ways(result)}
        lengths = {name: [(p.step, p.acceptance_length[way]) for p in result.curve] for way, name in names.items()}
        caption = "Tokens that a round brings on held-out prompts."
        svg = plots.curves(lengths, "steps", "acceptance length", bottom=1, mark=result.best_step)
        found["Learning curve"] = caption, svg
        points = {name: point for name, point in (("before", result.before), ("after", result.after)) if point}
        rates = {f"{name}, {when}": p.by_position[way] for way, name in names.items() for when, p in points.items()}
        found["Acceptance by position"] = "The share of rounds that kept the draft up to there.", plots.positions(rates)
    if result.losses:
        loss = result.settings["loss"]
        svg = plots.curves({loss: result.losses}, "steps", "loss", bottom=0, mark=None)
        found["Loss"] = "Between the target's distribution and the draft's.", svg
    return [Picture(name, caption, pages.inline(svg)) for name, (caption, svg) in found.items()]
