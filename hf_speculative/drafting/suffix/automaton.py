"""All substrings of a text that grows, with how often each one occurred: a suffix automaton.

Online construction of Blumer et al. 1985. A state stands for all substrings that end at the same places; `link` leads to the
state of the longest suffix that ends at more places. Two states are carried along, so that a token costs a few microseconds and
the longest match is known at once.
"""

from __future__ import annotations

from collections.abc import Iterable

#: what comes after these tokens: the state of their substring, and how many they are
Place = tuple[int, int]


class SuffixAutomaton:
    """A text, read a token at a time.

    Args:
        depth: the longest substring that is counted.

    Attributes:
        num_tokens: tokens read.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.num_tokens = 0
        # By state: what follows, the longest suffix that ends elsewhere too, the longest substring, how often and where last.
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._count, self._end = [-1], [0], [0], [0]
        self._text = 0  # the state of the whole text
        self._suffix, self._suffix_length = 0, 0  # the state of its last `depth` tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """Read on."""
        following, link, length, count, end = self._next, self._link, self._length, self._count, self._end
        for token in tokens:
            self.num_tokens += 1
            state, new = self._text, len(following)
            following.append({})
            link.append(0)
            length.append(length[state] + 1)
            count.append(0)
            end.append(0)
            while state >= 0 and token not in following[state]:
                following[state][token] = new
                state = link[state]
            if state >= 0:
                known = following[state][token]
                if length[known] != length[state] + 1:
                    known = self._split(known, state, token)
                link[new] = known
            self._text = new
            self._count_suffixes(token)

    def _split(self, known: int, state: int, token: int) -> int:
        """Substrings of `known` up to that of `state` and `token` now end at one place more: a state of their own."""
        following, link, length = self._next, self._link, self._length
        shorter = len(following)
        following.append(dict(following[known]))
        link.append(link[known])
        length.append(length[state] + 1)
        self._count.append(self._count[known])
        self._end.append(self._end[known])
        link[known] = shorter
        while state >= 0 and following[state].get(token) == known:
            following[state][token] = shorter
            state = link[state]
        return shorter

    def _count_suffixes(self, token: int) -> None:
        """One more of each suffix of up to `depth` tokens; longer ones would make repetitive texts quadratic."""
        link, count, end = self._link, self._count, self._end
        suffix = self._next[self._suffix][token]
        self._suffix_length += 1
        if self._suffix_length > self.depth:
            suffix, self._suffix_length = self._without_first(suffix, self.depth + 1)
        self._suffix = suffix
        while suffix:
            count[suffix] += 1
            end[suffix] = self.num_tokens
            suffix = link[suffix]

    def _without_first(self, state: int, length: int) -> tuple[int, int]:
        """The state of a substring of `length` tokens in `state`, without its first token."""
        shorter = self._link[state]
        return (shorter if self._length[shorter] == length - 1 else state), length - 1

    def longest_match(self) -> tuple[int, Place]:
        """The length of the longest suffix that occurred before, of at most `depth - 1` tokens, and the place after it."""
        state, length = self._suffix, self._suffix_length
        if length == self.depth:
            state, length = self._without_first(state, length)
        if not self._next[state] and state:  # it occurs at the end only
            state = self._link[state]
            length = self._length[state]
        return length, (state, length)

    def children(self, place: Place) -> list[tuple[int, int, int, Place]]:
        """What followed: how often, where last, the token, the place after it, where the last `depth - 1` tokens count."""
        state, length = place
        found = []
        for token, after in self._next[state].items():
            is_full = length + 1 == self.depth
            where = self._without_first(after, self.depth) if is_full else (after, length + 1)
            found.append((self._count[after], self._end[after], token, where))
        return found

    def copy(self) -> SuffixAutomaton:
        """The same text, to be read on for itself."""
        copy = SuffixAutomaton(self.depth)
        vars(copy).update({name: list(v) if isinstance(v, list) else v for name, v in vars(self).items()})
        copy._next = [dict(following) for following in self._next]
        return copy
