"""The sequences being generated, and what prompts share with the rows that run."""

import random

import torch

from hf_speculative.types import Batch, Prefix, shared_prefixes


def test_rows_that_come_have_room_for_their_next_token():
    """Drafters look up the token after each that was read, in the place of filler as well: of a row of one token, the next."""
    batch = Batch(torch.tensor([[1]]), [0], max_length=9)
    batch.select([0, 0])
    batch.admit(Batch(torch.tensor([[0, 0, 0, 5], [1, 2, 3, 4]]), [3, 0], max_length=9), [0, 1])
    assert batch.tokens.shape[1] > max(batch.host_lengths)


def longest(running: list[list[int]], tokens: list[int]) -> int:
    """By brute force: tokens in common, but the newest of either."""
    alike = [n for row in running for n in range(min(len(row), len(tokens))) if row[:n] == tokens[:n]]
    return max(alike, default=0)


def test_the_longest_beginning_in_common():
    generator = random.Random(0)
    for _ in range(500):
        running = [generator.choices([1, 2], k=generator.randint(1, 9)) for _ in range(4)]
        newcomers = [generator.choices([1, 2], k=generator.randint(1, 9)) for _ in range(3)]
        for tokens, prefix in zip(newcomers, shared_prefixes(running, newcomers), strict=True):
            assert prefix.num_tokens == longest(running, tokens)
            assert running[prefix.lane][: prefix.num_tokens] == tokens[: prefix.num_tokens]


def test_rows_that_wait_know_what_they_share():
    batch = Batch(torch.tensor([[0, 5, 6, 7], [5, 6, 8, 9], [0, 0, 5, 6]]), [1, 0, 2], max_length=9)
    batch.shares_prefixes = True
    batch.wait_beyond(1, [0, 1, 2])
    assert batch.newcomers(2).prefixes == [Prefix(0, 2), Prefix(0, 1)] and batch.prefixes == ()
