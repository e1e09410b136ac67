"""Which cases of a parametrised test `make test` runs."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support import tiny

#: of all model types and of other long lists of cases, slow tests take each STRIDE-th; with `EVERY_CASE=1`, all of them
EVERY_CASE = "EVERY_CASE" in os.environ
STRIDE = 1 if EVERY_CASE else 16

#: types with gated deltas, state spaces beside and without attention, convolutions, scans
RECURRENT = ("qwen3_5_text", "granitemoehybrid", "falcon_h1", "mamba2", "lfm2", "jamba")


def a_third(values: Iterable[Any], every: bool = EVERY_CASE) -> list:
    """The first of three `values` each, unless all of them are tried."""
    return [*values][:: 1 if every else 3]


def slow_but(values: Iterable[Any], *quick: Any, every: bool = EVERY_CASE) -> list:
    """`values` for `parametrize`: the `quick` ones, and an eighth of the others, or `every` one, which are slow.

    What those try besides is rarely what breaks.
    """
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"{missing} are none of {values}"
    slow = [value for value in values if value not in quick][:: 1 if every else 8]
    kept = [value for value in values if value in quick or value in slow]
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in kept]


def types_and_attentions() -> list:
    """Every type of model with both attentions; each other with sdpa, and a type with windows eagerly, are quick."""
    quick = {("gemma3_text", "eager"), *((name, "sdpa") for name in [*tiny.ARCHITECTURES][::2])}
    pairs = itertools.product(tiny.ARCHITECTURES, ("sdpa", "eager"))
    slow = [pair for pair in pairs if pair not in quick][:: 1 if EVERY_CASE else 8]
    return [*sorted(quick), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in slow)]
