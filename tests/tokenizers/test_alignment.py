"""A tokenizer's ids for a text that grows; what they are good for is in test_transcript.py."""

import doctest

from hf_speculative.tokenizers import alignment


def test_the_worked_example():
    assert doctest.testmod(alignment) == (0, 14)
