import pytest

import hf_speculative as hs
from tests.support import tiny


@pytest.fixture(scope="module")
def deep():
    return tiny.llama(layers=6)


@pytest.fixture(scope="session")
def tokenizer():
    return hs.embedded_pair()[2]


@pytest.fixture(scope="module")
def pair():
    target, _, tokenizer = hs.embedded_pair()
    return target, tokenizer
