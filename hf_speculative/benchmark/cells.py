"""Which combinations of settings are measured: a cell is one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One combination of settings.

    Attributes:
        batch: rows decoded together.
        num_draft_tokens: draft tokens a round, for methods that do not choose it.
        context: tokens of the prompt of each row.
        acceptance: what the pair is calibrated to; `None` for a pair that cannot be calibrated.
        temperature: 0 is greedy.
    """

    batch: int = 1
    num_draft_tokens: int = 4
    context: int = 64
    acceptance: float | None = None
    temperature: float = 0.0

    def __post_init__(self):
        for name in ("batch", "num_draft_tokens", "context"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"`{name}={value}`: give a number of 1 or more.")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise ValueError(f"`acceptance={self.acceptance}` is a share: give a number from 0 to 1.")
        if self.temperature < 0:
            raise ValueError(f"`temperature={self.temperature}`: give 0 for greedy decoding, or a number above it.")

    def __str__(self) -> str:
        parts = [f"batch {self.batch}", f"{self.num_draft_tokens} draft tokens", f"context {self.context}"]
        if self.acceptance is not None:
            parts.append(f"acceptance {self.acceptance:g}")
        return ", ".join([*parts, f"temperature {self.temperature:g}" if self.temperature else "greedy"])


#: settings that can be swept, and what to call them
AXES = {
    "batch": "batch size",
    "num_draft_tokens": "draft tokens a round",
    "context": "context, tokens",
    "acceptance": "acceptance of the calibration",
    "temperature": "temperature",
}


def sweep(
    batch: Sequence[int] = (1,),
    num_draft_tokens: Sequence[int] = (4,),
    context: Sequence[int] = (64,),
    acceptance: Sequence[float | None] = (None,),
    temperature: Sequence[float] = (0.0,),
    grid: bool = False,
) -> list[Cell]:
    """The cells of a sweep: one setting at a time around the first value of each list, or, with `grid`, all combinations.

    Cells of the same calibration come one after the other.
    """
    lists: dict[str, Sequence[Any]] = dict(
        zip(AXES, (batch, num_draft_tokens, context, acceptance, temperature), strict=True)
    )
    for name, values in lists.items():
        if not values:
            raise ValueError(f"`{name}` is empty: give one value or more.")
    if grid:
        cells = [Cell(**dict(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]
    else:
        base = Cell(**{name: values[0] for name, values in lists.items()})
        cells = [base] + [replace(base, **{name: value}) for name, values in lists.items() for value in values[1:]]
    return sorted(
        dict.fromkeys(cells), key=lambda cell: (cell.acceptance != acceptance[0], cell.temperature != temperature[0])
    )
