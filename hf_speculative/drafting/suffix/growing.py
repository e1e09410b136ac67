"""A growing text, and the earlier occurrences of its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .index import MOST_VOTES

#: n-grams by which places are found, the longest first
NGRAMS = (4, 1)
#: of the places after one n-gram the latest are looked at
MOST_PLACES = 64


class GrowingText:
    """A text, read a token at a time, in a few microseconds each."""

    def __init__(self, tokens: Iterable[int] = ()):
        self.tokens: list[int] = []
        self._places: dict[int, dict[tuple[int, ...], list[int]]] = {n: defaultdict(list) for n in NGRAMS}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Read on."""
        for token in tokens:
            for n, places in self._places.items():
                if n <= len(self.tokens):
                    places[tuple(self.tokens[-n:])].append(len(self.tokens))
            self.tokens.append(token)

    def longest_match(self, most: int, num_tokens: int) -> tuple[int, list[list[int]]]:
        """How many of the last tokens, `most` at most, stood before, and `num_tokens` that followed there, the latest last."""
        for n, places in self._places.items():
            found = places.get(tuple(self.tokens[-n:]), [])[-MOST_PLACES:] if n <= most else []
            if found:
                lengths = [self._length(place, n, most) for place in found]
                latest = [place for place, length in zip(found, lengths, strict=True) if length == max(lengths)]
                return max(lengths), [self.tokens[place : place + num_tokens] for place in latest[-MOST_VOTES:]]
        return 0, []

    def _length(self, place: int, length: int, most: int) -> int:
        """How many of the text's last tokens, of which `length` are known, stand before a place."""
        while length < min(most, place) and self.tokens[place - 1 - length] == self.tokens[-1 - length]:
            length += 1
        return length

    def copy(self) -> GrowingText:
        """The same text, to be read on for itself."""
        return GrowingText(self.tokens)
