import itertools
import time

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


@pytest.fixture
def ticking(pair, monkeypatch):
    """A clock that goes on by a millisecond for each pass of the pair and each time that it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 1000)

    def tick(module, args):
        next(ticks)

    hook = pair.target.register_forward_pre_hook(tick)
    yield
    hook.remove()
