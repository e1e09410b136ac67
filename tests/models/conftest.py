import pytest

import hf_speculative as hs
from hf_speculative.models import artifacts, pool
from tests.support import tiny
from tests.support.execution import num_packed, run_as


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


@pytest.fixture(scope="module")
def passes_of_module(tmp_path_factory):
    return tmp_path_factory.mktemp("passes")


@pytest.fixture
def folder(passes_of_module, monkeypatch):
    """Where the compiler itself puts passes, which the tests of a module share."""
    monkeypatch.setenv(artifacts.FOLDER, str(passes_of_module))
    pool._kept.clear()
    return passes_of_module
