import pytest

from hf_speculative.models import artifacts, pool
from tests.support import tiny


@pytest.fixture
def model():
    """One of the test's own, which may be changed."""
    return tiny.llama()


@pytest.fixture
def plain():
    """A twin of `model`."""
    return tiny.llama()


@pytest.fixture(scope="module")
def passes_of_module(tmp_path_factory):
    return tmp_path_factory.mktemp("passes")


@pytest.fixture
def folder(passes_of_module, monkeypatch):
    """Where the compiler itself puts passes, which the tests of a module share."""
    monkeypatch.setenv(artifacts.FOLDER, str(passes_of_module))
    pool._kept.clear()
    return passes_of_module
