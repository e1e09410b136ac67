"""The two plots that move, as shares of a plot's width and height; plots.html draws them in the page's own colours."""

import math
from collections.abc import Sequence
from typing import Any

from .recording import RoundRecord

#: the first points of a speed are all prompt
NUM_SKIPPED = 2
#: rounds shown, the last ones, and the least number that there is room for
MOST_ROUNDS, LEAST_ROUNDS = 60, 24


def speeds(plain: Sequence[tuple[float, int]], own: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Tokens per second so far, over time.

    Args:
        plain, own: seconds and tokens after each pass.
    """
    ways = {"plain": plain[NUM_SKIPPED:], "own": own[NUM_SKIPPED:]}
    lines = {name: [(seconds, tokens / seconds) for seconds, tokens in times] for name, times in ways.items()}
    points = [point for line in lines.values() for point in line]
    right, top = max((x for x, _ in points), default=1.0), _round_number(max((y for _, y in points), default=1.0))
    shares = {name: [(x / right, y / top) for x, y in line] for name, line in lines.items()}
    return {"top": top, "label": f"{right:.1f} s", "lines": shares}


def kept(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """A column a round: draft tokens kept, and those drafted."""
    first = max(0, len(rounds) - MOST_ROUNDS)
    columns = [(i + 1, r.num_from_draft, len(r.guesses)) for i, r in enumerate(rounds[first:], start=first)]
    top = max((num_drafted for _, _, num_drafted in columns), default=0) or 1
    width = 1 / max(len(columns), LEAST_ROUNDS)
    return {"top": top, "label": f"round {len(rounds)}", "columns": columns, "width": width}


def _round_number(value: float) -> float:
    """The next number above that reads well."""
    size = 10 ** math.floor(math.log10(max(1.0, value)))
    return next(step * size for step in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0) if step * size >= value)
