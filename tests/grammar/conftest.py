import pytest

import hf_speculative as hs


@pytest.fixture(scope="session")
def pair():
    return hs.embedded_pair()


@pytest.fixture(scope="session")
def target(pair):
    return pair[0]


@pytest.fixture(scope="session")
def draft(pair):
    return pair[1]


@pytest.fixture(scope="session")
def tokenizer(pair):
    return pair[2]
