"""What a call streams and returns is what plain decoding does."""

import pytest
import torch
from transformers import set_seed

import hf_speculative as hs
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


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("sampled", [False, True])
def test_scores_and_logits_parity(target, draft, batch_size, sampled):
    kwargs = tiny.prompts(batch_size) | {
        "max_new_tokens": NEW,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.3,
        "do_sample": sampled,
    }
    set_seed(1)
    expected = target.generate(**kwargs)
    set_seed(1)
    found = hs.generate(target, **kwargs, draft_model=draft, **({"reproducible": True} if sampled else {}))
    assert found.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(found[name]) == len(expected[name]) == NEW
        for mine, theirs in zip(found[name], expected[name], strict=True):
            assert mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
