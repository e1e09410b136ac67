"""Prefix caching: find what new prompts have in common with cached rows."""

from collections.abc import Sequence
from typing import NamedTuple


class Prefix(NamedTuple):
    """Of a new row: its first `num_tokens` tokens are those of the row at `lane`."""

    lane: int
    num_tokens: int


def shared_prefixes(running: Sequence[list[int]], newcomers: Sequence[list[int]]) -> list[Prefix]:
    """What each new row shares with a running one."""
    return [_longest_prefix(running, tokens) for tokens in newcomers]


def _longest_prefix(running: Sequence[list[int]], tokens: list[int]) -> Prefix:
    """The longest beginning of `tokens` that a running row has cached, which is all but its newest token.

    The last token is always left to be read: a pass over nothing would give no logits.
    """
    found = Prefix(0, 0)
    for lane, history in enumerate(running):
        limit = min(len(history), len(tokens)) - 1
        # Nothing to gain over what was found, or another text altogether: most lanes end here, at the speed of C.
        if limit > found.num_tokens and history[: found.num_tokens + 1] == tokens[: found.num_tokens + 1]:
            alike = (i for i in range(found.num_tokens + 1, limit) if history[i] != tokens[i])
            found = Prefix(lane, next(alike, limit))
    return found
