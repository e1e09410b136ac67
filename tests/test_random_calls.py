"""Random calls on this processor.

`RANDOM_CALLS=3000 pytest -m slow tests/test_random_calls.py` makes as many calls, each from a seed of its own.
"""

import os

import pytest

from tests.support.cases import slow_but
from tests.support.random_calls import check, check_bits, check_bits_by_kernels

#: calls of the slow test, and those of the quick one
MANY, FEW = int(os.environ.get("RANDOM_CALLS", "30")), 12
CHUNK = 30
SEEDS = [range(FEW), *(range(first, first + CHUNK) for first in range(1000, 1000 + MANY, CHUNK))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("check", [check, check_bits, check_bits_by_kernels])
@pytest.mark.parametrize("seeds", slow_but(SEEDS, range(FEW), every=True), ids=str)
def test_random_calls(seeds, check):
    for seed in seeds:
        check(seed)
