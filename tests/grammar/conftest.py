import pytest


@pytest.fixture(scope="module")
def target(pair):
    return pair[0]


@pytest.fixture(scope="module")
def draft(pair):
    return pair[1]


@pytest.fixture(scope="module")
def tokenizer(pair):
    return pair[2]
