import pytest

import hf_speculative as hs


@pytest.fixture(scope="session")
def pair():
    return hs.embedded_pair()
