"""Texts with draft tokens marked."""

from itertools import islice
from typing import Any

from ..results import Evaluation
from ..settings import Setting

#: the number of prompts shown, and of characters of a prompt, from its end
FEW, MAX_PROMPT_CHARACTERS = 6, 2000


def texts(evaluation: Evaluation, setting: Setting) -> list[dict[str, Any]]:
    """The first texts of a setting: prompts, and tokens with their probability to be kept, `None` for the target's own."""
    plain, identical = evaluation.rows(setting.baseline), evaluation.identical(setting)
    rows = (row for index, row in evaluation.rows(setting).items() if index in plain)
    return [
        {
            "index": row.index,
            "prompt": (plain[row.index].prompt or "")[-MAX_PROMPT_CHARACTERS:].lstrip("\n"),
            "tokens": list(zip(row.pieces, row.acceptance_prob, strict=True)),
            "num_drafted": sum(chance is not None for chance in row.acceptance_prob),
            "is_identical": identical.get(row.index),
        }
        for row in islice(rows, FEW)
    ]
