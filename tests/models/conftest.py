import pytest

import hf_speculative as hs
from tests.support.packed import num_packed


@pytest.fixture
def packed(model):
    """A model of which all linear layers are packed."""
    hs.attach(model, draft_model="suffix", config=hs.SpeculativeConfig(pack_weights=True))
    assert num_packed(model) == 15
    yield model
    hs.detach(model)
