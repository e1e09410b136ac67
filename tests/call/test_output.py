"""What a call streams and returns is what plain decoding does."""

import pytest
import torch

from tests.support import tiny
from tests.support.plain import Collect, ours, plain


@pytest.mark.parametrize("num_rows", [1, 3])
def test_streaming(target, draft, num_rows):
    """Steps come when every running row has reached them, with padding for rows that are done, as in plain generate."""
    inputs = tiny.prompts(num_rows)
    eos = plain(target, inputs)[num_rows // 2, 10].item()
    streamer, reference = Collect(), Collect()
    out = ours(target, inputs, draft_model=draft, streamer=streamer, eos_token_id=eos)
    plain(target, inputs, streamer=reference, eos_token_id=eos)
    assert torch.stack([piece.view(-1) for piece in streamer.pieces[1:]], 1).tolist() == out[:, 7:].tolist()
    assert [piece.tolist() for piece in streamer.pieces] == [piece.tolist() for piece in reference.pieces]
    assert streamer.ended
