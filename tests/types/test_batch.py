"""The sequences being generated."""

import torch

from hf_speculative.types import Batch


def test_rows_that_come_have_room_for_their_next_token():
    """Drafters look up the token after each that was read, in the place of filler as well: of a row of one token, the next."""
    batch = Batch(torch.tensor([[1]]), [0], max_length=9)
    batch.select([0, 0])
    batch.admit(Batch(torch.tensor([[0, 0, 0, 5], [1, 2, 3, 4]]), [3, 0], max_length=9), [0, 1])
    assert batch.tokens.shape[1] > max(batch.host_lengths)
