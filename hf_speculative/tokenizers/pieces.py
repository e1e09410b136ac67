"""From tokens to text, a token at a time."""

from collections.abc import Callable, Sequence


class Pieces:
    """The text that each token adds; joined, they are the whole text.

    A token that leaves a character incomplete adds no text; the token that completes it adds the whole character.

    Args:
        decode: from ids to text, a tokenizer's.
        before: ids in front of the first token, on which its white space may depend.
    """

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()):
        self.decode, self.ids = decode, list(before)
        self.start, self.read = 0, len(self.ids)

    def add(self, token: int, is_last: bool) -> str:
        """What `token` adds; the last one adds whatever is left, complete or not."""
        self.ids.append(token)
        before, now = (self.decode(self.ids[self.start : end]) for end in (self.read, len(self.ids)))
        if len(now) <= len(before) or (now.endswith("\ufffd") and not is_last):
            return ""
        self.start, self.read = self.read, len(self.ids)
        return now[len(before) :]
