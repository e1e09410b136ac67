"""Which cases of a parametrised test `make test` runs."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support import tiny

#: of all model types, slow tests take each STRIDE-th; with `EVERY_TYPE=1 pytest -m slow` all of them
STRIDE = 1 if "EVERY_TYPE" in os.environ else 7


def slow_but(values: Iterable[Any], *quick: Any) -> list:
    """`values` for `parametrize`, of which all but the `quick` ones are slow: what they try besides is rarely what breaks."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"{missing} are none of {values}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def types_and_attentions() -> list:
    """Every type of model with both attentions; of eager ones, a type with windows and one without are quick."""
    quick = {(name, "eager") for name in ("llama", "gemma3_text")} | {(name, "sdpa") for name in tiny.ARCHITECTURES}
    pairs = itertools.product(tiny.ARCHITECTURES, ("sdpa", "eager"))
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in pairs]
