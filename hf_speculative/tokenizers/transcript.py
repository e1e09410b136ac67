"""The same row in two vocabularies, kept in step while it grows.

Committed tokens of the target become text, and the text the draft's ids. The other way round, what the draft wrote becomes
text, and the text tokens of the target, to be proposed.

    the target's tokens   "im" "port" " os"
    the text               i m  p o r t   o s
    the draft's ids       "import"  " "  "os"
"""

import copy
from codecs import utf_8_decode
from itertools import takewhile

from .alignment import Alignment, Translation, begins_character


class Transcript:
    """One row: the target's committed tokens, as text and as the draft's ids.

    Args:
        by_token: ids for new tokens come from the table of shared tokens where they can, instead of from the text.

    Attributes:
        num_read: committed tokens read so far.
        draft: the text of what was read since the last special token, and the draft's ids for the whole row, one BOS at most.
    """

    def __init__(self, translation: Translation, by_token: bool):
        self.translation, self.by_token = translation, by_token
        self.num_read = 0
        draft, lookbehind = translation.draft, translation.draft_lookbehind
        self.draft = Alignment(translation.encode_draft, draft.piece, lookbehind, [*draft.prefix])

    def copy(self) -> "Transcript":
        other = copy.copy(self)
        other.draft = self.draft.copy()
        return other

    def begin(self, prompt: list[int]) -> None:
        """Read the prompt. It is encoded on its own: in the target's ids, too, nothing merges across its end."""
        self.advance(prompt, [])
        cuts_anywhere = not (self.translation.draft.adds_space or self.translation.target.adds_space)
        if cuts_anywhere and self.draft.num_covered == len(self.draft.text):
            self.draft.cut()

    def advance(self, history: list[int], drafted: list[int]) -> int:
        """Read what was committed since the last call.

        Args:
            history: all of the row's committed tokens.
            drafted: the draft's ids that its cache has, or is about to have, after `ids`.

        Returns:
            How many of the draft's ids, drafted ones included, are still as they were; fewer than there are now.
        """
        new, draft = history[self.num_read :], self.draft
        by_token = self.by_token and self.num_read > 0  # a prompt is encoded as the draft is used to
        if by_token:  # all new tokens but one were drafted
            drafted = [self.translation.to_draft.get(token, -1) for token in new[:-1]]
        start = max(0, len(draft.ids) - draft.lookbehind - 4)
        before = draft.ids[start:] + drafted
        draft.drafted = [] if by_token else list(drafted)
        for token in new:
            self._read(token, by_token)
        draft.cover()
        if not draft.ids:
            draft.ids.append(self.translation.filler)
        after = draft.ids[start:]
        agreed = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        return start + (min(len(before), len(after) - 1) if agreed is None else agreed)

    def _read(self, token: int, by_token: bool) -> None:
        self.num_read += 1
        translation, draft = self.translation, self.draft
        if token in translation.target.specials:
            draft.cover()
            draft.cut(self._special(token))
            return
        piece = translation.target.piece(token) or b""
        if not draft.text and self.num_read <= 2 and translation.target.adds_space and piece.startswith(b" "):
            piece = piece[1:]  # the target's own habit, not the text's
        is_covered = len(draft.text) == draft.num_covered
        draft.text += piece
        if by_token and is_covered and token in translation.to_draft:
            draft.append(translation.to_draft[token])

    def _special(self, token: int) -> int | None:
        """The draft's id for a special token, if it has one; what begins a row stands there once, in the draft's own way."""
        translation = self.translation
        if token == translation.target.roles.get("bos") and len(self.draft.ids) == len(translation.draft.prefix):
            return None
        index = translation.to_draft.get(token)
        return None if index in translation.openers else index

    def candidates(self, drafted: list[int], history: list[int], limit: int) -> list[int]:
        """The target's tokens, `limit` at most, for the text that `drafted` adds to the committed one."""
        target, text = self.translation.target, self.draft.text
        written, special = self._written(drafted)
        # Of a character that the target has begun, and the draft writes whole.
        unread = bytes(text[self.draft.num_covered :])
        if not written.startswith(unread):
            return []
        size = self._context(history)
        whole, is_whole = _decode(bytes(text[len(text) - size :]) + written[len(unread) :])
        ids, ends = self.translation.encode_target(whole)
        if size:
            if size not in ends:
                return []  # here the text would merge across the committed tokens
            ids = ids[ends.index(size) + 1 :]
        usable = [*takewhile(lambda index: index < self.translation.vocab_size and index not in target.specials, ids)]
        if special is not None and is_whole and len(usable) == len(ids):
            usable.append(special)
        return usable[:limit]

    def _written(self, drafted: list[int]) -> tuple[bytes, int | None]:
        """The text of `drafted` up to a special token, and what that is to the target, if it is anything."""
        written = b""
        for index in drafted:
            piece = self.translation.draft.piece(index)
            if piece is None:
                return written, self.translation.to_target.get(index)
            written += piece
        return written, None

    def _context(self, history: list[int]) -> int:
        """How many bytes of the text the last tokens stand for, from the beginning of a character on."""
        size, best, text = 0, 0, self.draft.text
        for token in history[: -self.translation.target_lookbehind - 1 : -1]:
            piece = self.translation.target.piece(token)
            if piece is None or size == len(text):
                break
            size = min(size + len(piece), len(text))
            if size and begins_character(text[-size]):
                best = size
        return best


def _decode(data: bytes) -> tuple[str, bool]:
    """Text up to the first byte that is none, and whether that is all of it."""
    try:
        text, num_bytes = utf_8_decode(data, "strict", False)
    except UnicodeDecodeError as error:
        text, num_bytes = data[: error.start].decode(), error.start
    return text, num_bytes == len(data)
