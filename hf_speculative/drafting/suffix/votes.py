"""What followed one match in several places of a text."""

from collections.abc import Sequence

#: which of the places agree so far, and in how many tokens
Place = tuple[tuple[int, ...], int]


class Votes:
    """The continuations of a match as a tree that they share.

    Args:
        continuations: the tokens that followed each, the latest last, all of one length.
    """

    def __init__(self, continuations: Sequence[Sequence[int]]):
        self.continuations = continuations
        self.root: Place = (tuple(range(len(continuations))), 0)

    def children(self, place: Place) -> list[tuple[int, int, int, Place]]:
        """What followed: how often, where last, the token, the place after it. Nothing at the continuations' end."""
        indices, depth = place
        voters: dict[int, list[int]] = {}
        for i in indices:
            if depth < len(self.continuations[i]):
                voters.setdefault(self.continuations[i][depth], []).append(i)
        return [(len(found), found[-1], token, (tuple(found), depth + 1)) for token, found in voters.items()]
