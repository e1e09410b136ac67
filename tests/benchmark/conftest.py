import itertools

import pytest
import torch

from hf_speculative import benchmark
from hf_speculative.benchmark import measure


@pytest.fixture(scope="session")
def pair():
    return benchmark.CalibratedPair("tiny", dtype=torch.float32, num_rows=32)


@pytest.fixture
def steady(monkeypatch):
    """A clock by which every long call takes 8 s and every short one 2 s."""
    seconds = itertools.cycle((8.0, 2.0))
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), next(seconds)))
