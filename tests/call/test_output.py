"""What a call streams and returns is what plain decoding does."""

import torch

from tests.support import tiny
from tests.support.plain import NEW, Collect, ours, plain


def test_streaming_puts_one_token_at_a_time(target, draft):
    streamer = Collect()
    out = ours(target, tiny.prompts(1), draft_model=draft, streamer=streamer)
    assert [tuple(piece.shape) for piece in streamer.pieces] == [(1, 7)] + [(1,)] * NEW
    assert torch.cat([piece.flatten() for piece in streamer.pieces]).tolist() == out[0].tolist() and streamer.ended


def test_streaming_a_batch(target, draft):
    """Steps come when every running row has reached them, with padding for rows that are done, as in plain generate."""
    inputs = tiny.prompts(3)
    eos = plain(target, inputs)[1, 10].item()
    streamer, reference = Collect(), Collect()
    out = ours(target, inputs, draft_model=draft, streamer=streamer, eos_token_id=eos)
    plain(target, inputs, streamer=reference, eos_token_id=eos)
    assert torch.stack(streamer.pieces[1:], 1).tolist() == out[:, 7:].tolist()
    assert [p.tolist() for p in streamer.pieces] == [p.tolist() for p in reference.pieces]
