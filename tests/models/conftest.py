import pytest

import hf_speculative as hs
from tests.support import tiny
from tests.support.execution import run_as
from tests.support.packed import num_packed


@pytest.fixture
def model():
    """One of the test's own, which may be changed."""
    return tiny.llama()


@pytest.fixture
def plain():
    """A twin of `model`."""
    return tiny.llama()


@pytest.fixture
def packed(model, monkeypatch):
    """A model of which all linear layers are packed."""
    run_as(monkeypatch, packs=True)
    hs.attach(model, draft_model="suffix")
    assert num_packed(model) == 15
    yield model
    hs.detach(model)
