"""How long a batch takes to its end, by what its rounds bring each row.

A batch is over when its slowest row is, and its passes get cheaper as rows leave. So a draft that helps most rows can make the
whole take longer than plain decoding. Where other rows wait for the lanes that become free, all tokens count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Batch

#: the time of a round, by how many rows are running
Time = Callable[[int], float]


class Remaining:
    """What the rows of a batch have still to generate, if none of them ends early.

    Attributes:
        tokens: of each row.
        refills: rows that wait take the lanes of those that are done.
    """

    def __init__(self, batch: Batch):
        self.tokens = [max(1, batch.max_length - length) for length in batch.host_lengths]
        self.refills = batch.refills

    def seconds(self, gains: Sequence[float], time: Time) -> float:
        """Until all rows are done, if each round brings row i `gains[i]` tokens and takes `time`."""
        if self.refills:
            return sum(self.tokens) / sum(gains) * time(len(gains))
        return _until_last([max(1.0, left / gain) for left, gain in zip(self.tokens, gains, strict=True)], time)

    def saved(self, gains: Sequence[float], time: Time) -> float:
        """How much less rounds of `time` that bring a token a row take from here on, after one that has brought `gains`."""
        if self.refills:
            return sum(gains) / len(gains) * time(len(gains))
        left = [max(0.0, left - gain) for left, gain in zip(self.tokens, gains, strict=True)]
        return _until_last(self.tokens, time) - _until_last(left, time)


def _until_last(num_rounds: Sequence[float], time: Time) -> float:
    """The time of as many rounds as the last row takes, over the rows that are left in each of them."""
    seconds, before = 0.0, 0.0
    for num_done, num in enumerate(sorted(num_rounds)):
        seconds += (num - before) * time(len(num_rounds) - num_done)
        before = num
    return seconds
