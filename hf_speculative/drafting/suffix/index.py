"""Where a text's n-grams are: places sorted by what is before them."""

import numpy as np

#: the end of a document in a text
END = -1
#: n-grams by which places are found, the longest first
NGRAMS = (4, 2)
#: of the places with one n-gram the latest are looked at, and of those after the longest match the latest have a vote
MOST_PLACES, MOST_VOTES = 256, 32
#: of the hash, modulo 2^32 (Knuth's multiplicative hashing)
FACTOR = 2654435769


class Index:
    """A text and its n-grams: 20 bytes a token.

    Args:
        tokens: `(n,)` int32, documents that end with `END` each.
    """

    def __init__(self, tokens: np.ndarray):
        self.tokens = tokens
        self._sorted = {n: _sorted_places(tokens, n) for n in NGRAMS}

    def __len__(self) -> int:
        return len(self.tokens)

    def longest_match(self, context: np.ndarray, n: int, start: int) -> tuple[int, np.ndarray]:
        """How many of the last tokens of `context` the text has, `n` at least, and the places after them, the latest last.

        Places up to `start` are left out. Without any it is 0.
        """
        hashes, places = self._sorted[n]
        key = _hashes(context[-n:], n)[0]
        places = places[hashes.searchsorted(key, "left") : hashes.searchsorted(key, "right")][-MOST_PLACES:]
        if start:
            places = places[places > start]
        if not len(places):
            return 0, places
        back = self.tokens.take(places[:, None] - np.arange(1, len(context) + 1), mode="clip")
        lengths = np.logical_and.accumulate(back == context[::-1], axis=1).sum(1)
        lengths = np.minimum(lengths, places)  # before the first token there is none, whatever a clipped place shows
        longest = int(lengths.max())
        return (longest, places[lengths == longest][-MOST_VOTES:]) if longest >= n else (0, places[:0])

    def following(self, places: np.ndarray, num_tokens: int) -> list[list[int]]:
        """The `num_tokens` tokens from each place on."""
        return self.tokens.take(places[:, None] + np.arange(num_tokens), mode="clip").tolist()


def _hashes(tokens: np.ndarray, n: int) -> np.ndarray:
    """Of each n-gram, modulo 2^32."""
    hashes = np.zeros(len(tokens) - n + 1, dtype=np.uint32)
    for i in range(n):
        hashes = hashes * np.uint32(FACTOR) + tokens[i : len(tokens) - n + 1 + i].astype(np.uint32)
    return hashes


def _sorted_places(tokens: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the n-grams that something follows, ascending, and the places after them."""
    if len(tokens) <= n:
        return np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.int32)
    hashes = _hashes(tokens[:-1], n)
    order = hashes.argsort(kind="stable").astype(np.int32)  # stable: places of one n-gram stay in order
    return hashes[order], order + np.int32(n)
