import pytest

from tests.support import tiny


@pytest.fixture(scope="module")
def deep():
    return tiny.llama(layers=6)
