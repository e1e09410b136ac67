"""What followed the longest run of tokens that ends a text, where it occurred last: prompt lookup (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """The n-grams of one text, and where each was followed last. It grows with the text: a look costs the same at any length.

    Args:
        max_ngram: the longest n-gram to match; shorter ones are tried down to a single token.
    """

    def __init__(self, max_ngram: int):
        self.max_ngram, self.num_indexed = max_ngram, 0
        self.ends: dict[tuple[int, ...], int] = {}

    def copy(self) -> NgramIndex:
        copy = NgramIndex(self.max_ngram)
        copy.num_indexed, copy.ends = self.num_indexed, dict(self.ends)
        return copy

    def last_match(self, text: Sequence[int]) -> tuple[int, int]:
        """What came to a text is entered; where the longest match of its end was followed, and its length, 0 without any."""
        # An n-gram is entered once the token after it is known; a later occurrence takes the place of an earlier one.
        for end in range(max(1, self.num_indexed), len(text)):
            for n in range(1, min(self.max_ngram, end) + 1):
                self.ends[tuple(text[end - n : end])] = end
        self.num_indexed = len(text)
        for n in range(min(self.max_ngram, len(text)), 0, -1):
            start = self.ends.get(tuple(text[-n:]))
            if start is not None:
                return start, n
        return len(text), 0
