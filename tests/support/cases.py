"""Which cases of a parametrised test `make test` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *quick: Any) -> list:
    """`values` for `parametrize`, of which all but the `quick` ones are slow: what they try besides is rarely what breaks."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"{missing} are none of {values}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
