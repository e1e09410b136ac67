"""How long a batch takes to its end, by what its rounds bring each row.

A batch is over when its slowest row is, and its passes get cheaper as rows leave. So a draft that helps most rows can make the
whole take longer than plain decoding. Where other rows wait for the lanes that become free, all tokens count alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..types import Batch

Floats = NDArray[np.float64]


class Remaining:
    """What the rows of a batch have still to generate, if none of them ends early.

    Attributes:
        tokens: `(rows,)`.
        refills: rows that wait take the lanes of those that are done.
    """

    def __init__(self, batch: Batch):
        self.tokens = np.maximum(1.0, batch.max_length - np.array(batch.host_lengths))
        self.refills = batch.refills

    def seconds(self, gains: Floats, times: Floats) -> Floats:
        """Until all rows are done, `(n,)`, for each of n ways to go on.

        Args:
            gains: `(rows, n)`, tokens that a round brings each row.
            times: `(rows, n)`, seconds of a round while 1, 2, ... rows are running.
        """
        if self.refills:
            return self.tokens.sum() / gains.sum(0) * times[-1]
        return _until_last(np.maximum(1.0, self.tokens[:, None] / gains), times)

    def saved(self, gains: Floats, times: Floats) -> float:
        """Seconds that rounds of one token a row take less from here on, after a round that has brought `gains (rows,)`.

        Args:
            times: `(rows,)`, seconds of a round of one token a row, likewise.
        """
        if self.refills:
            return gains.mean() * times[-1]
        left = np.stack([self.tokens, np.maximum(0.0, self.tokens - gains)], 1)
        before, after = _until_last(left, times[:, None])
        return before - after


def _until_last(num_rounds: Floats, times: Floats) -> Floats:
    """The time of as many rounds as the last row takes, over the rows that are left in each of them."""
    done = np.sort(num_rounds, 0)
    done[1:] -= done[:-1].copy()
    return (done * times[::-1]).sum(0)
