"""The same text in two vocabularies, kept in step while it grows.

The target's committed tokens are read as bytes; the draft's ids for them are derived once, and only the last few may change
when more text follows. The other way round, the draft's text is encoded for the target within a window, and only what
comes after the committed tokens is taken. So a round encodes as much text at 8,000 tokens as at 80.
"""

from __future__ import annotations

import copy
from codecs import utf_8_decode
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from .vocabulary import Vocabulary, shared_tokens, vocabulary_of

LOOKBEHIND = 10


class Encoder:
    """A tokenizer that says where in the text each token ends.

    Attributes:
        num_characters: characters encoded so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.vocabulary = tokenizer, vocabulary_of(tokenizer)
        self.num_characters = 0

    def __call__(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of `text` and the byte at which each ends; nothing where that cannot be told."""
        self.num_characters += len(text)
        settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        ids = list(self.tokenizer(text, **settings).input_ids)
        pieces = [self.vocabulary.piece(index) for index in ids]
        ends = list(accumulate(len(piece or b"") for piece in pieces))
        surplus = ends[-1] - len(text.encode()) if ids else 0
        if None not in pieces and surplus in (0, 1):  # 1: the space that many tokenizers put before a text
            return ids, [max(0, end - surplus) for end in ends]
        if not self.tokenizer.is_fast:
            return [], []
        # The tokenizer normalises; it still knows which characters a token came from.
        offsets = self.tokenizer(text, return_offsets_mapping=True, **settings).offset_mapping
        sizes = [0, *accumulate(len(character.encode()) for character in text)]
        return ids, [sizes[end] for _, end in offsets]


class Translation:
    """A pair of tokenizers, and the tokens that both have.

    Args:
        vocab_size, draft_vocab_size: width of the models' logits.
        target_lookbehind, draft_lookbehind: how many tokens of the committed text are encoded again together with new text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        draft_tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        draft_vocab_size: int,
        target_lookbehind: int = LOOKBEHIND,
        draft_lookbehind: int = LOOKBEHIND,
    ):
        self.encode_target, self.encode_draft = Encoder(tokenizer), Encoder(draft_tokenizer)
        self.target: Vocabulary = self.encode_target.vocabulary
        self.draft: Vocabulary = self.encode_draft.vocabulary
        self.vocab_size, self.draft_vocab_size = vocab_size, draft_vocab_size
        self.target_lookbehind, self.draft_lookbehind = target_lookbehind, draft_lookbehind
        self.to_target = shared_tokens(self.target, self.draft, vocab_size, draft_vocab_size)
        self.to_draft = {index: draft_index for draft_index, index in self.to_target.items()}
        roles = self.draft.roles
        self.openers = {*self.draft.prefix, roles.get("bos")} - {roles.get("eos")}
        #: stands for a text that is empty: a model must be fed something
        self.filler = next((roles[role] for role in ("bos", "eos", "pad") if role in roles), 0)

    @property
    def num_characters(self) -> int:
        """Characters encoded so far, by both tokenizers."""
        return self.encode_target.num_characters + self.encode_draft.num_characters


class Transcript:
    """One row: the target's committed tokens, as text and as the draft's ids.

    Text is split at special tokens, across which nothing merges.

    Attributes:
        text: bytes of the committed text since the last special token.
        ids: the draft's ids for the whole row, one BOS at most.
        ends: for each of `ids` since that special token, the byte of `text` at which it ends.
    """

    def __init__(self, translation: Translation, by_token: bool):
        self.translation, self.by_token = translation, by_token
        self.num_read = 0
        self.text = bytearray()
        self.ids: list[int] = list(translation.draft.prefix)
        self.ends: list[int] = []
        self.drafted: list[int] = []

    def copy(self) -> Transcript:
        other = copy.copy(self)
        other.text, other.ids, other.ends = bytearray(self.text), list(self.ids), list(self.ends)
        return other

    def begin(self, prompt: list[int]) -> None:
        """Read the prompt. It is encoded on its own: in the target's ids, too, nothing merges across its end."""
        self.advance(prompt, [])
        cuts_anywhere = not (self.translation.draft.adds_space or self.translation.target.adds_space)
        if cuts_anywhere and self._end() == len(self.text):
            self.text, self.ends = bytearray(), []

    def advance(self, history: list[int], drafted: list[int]) -> int:
        """Read what was committed since the last call.

        Args:
            history: all of the row's committed tokens.
            drafted: the draft's ids that its cache has, or is about to have, after `ids`.

        Returns:
            How many of the draft's ids, drafted ones included, are still as they were; fewer than there are now.
        """
        new = history[self.num_read :]
        by_token = self.by_token and self.num_read > 0  # a prompt is encoded as the draft is used to
        if by_token:  # all new tokens but one were drafted
            drafted = [self.translation.to_draft.get(token, -1) for token in new[:-1]]
        start = max(0, len(self.ids) - self.translation.draft_lookbehind - 4)
        before = self.ids[start:] + drafted
        self.drafted = [] if by_token else list(drafted)
        for token in new:
            self._read(token, by_token)
        self._cover()
        if not self.ids:
            self.ids.append(self.translation.filler)
        after = self.ids[start:]
        agreed = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        return start + (min(len(before), len(after) - 1) if agreed is None else agreed)

    def _read(self, token: int, by_token: bool) -> None:
        self.num_read += 1
        translation = self.translation
        if token in translation.target.specials:
            self._cover()
            self._read_special(token)
            return
        piece = translation.target.piece(token) or b""
        if not self.text and self.num_read <= 2 and translation.target.adds_space and piece.startswith(b" "):
            piece = piece[1:]  # the target's own habit, not the text's
        covered = len(self.text) == self._end()
        self.text += piece
        if by_token and covered and token in translation.to_draft:
            self.ids.append(translation.to_draft[token])
            self.ends.append(len(self.text))

    def _read_special(self, token: int) -> None:
        translation = self.translation
        begins = token == translation.target.roles.get("bos") and len(self.ids) == len(translation.draft.prefix)
        draft_token = None if begins else translation.to_draft.get(token)
        if draft_token is not None and draft_token not in translation.openers:
            self.ids.append(draft_token)
            self.drafted = self.drafted[1:] if self.drafted[:1] == [draft_token] else []
        self.text, self.ends = bytearray(), []

    def _end(self) -> int:
        """How many bytes of the text the draft's ids cover."""
        return self.ends[-1] if self.ends else 0

    def _cover(self) -> None:
        """Bring the draft's ids up to the end of the text, but for the bytes of a character that is not whole yet."""
        pieces = self.translation.draft
        while self.drafted and self._end() < len(self.text):
            piece = pieces.piece(self.drafted[0])
            if not piece or not self.text.startswith(piece, self._end()):
                self.drafted = []
                break
            self.ends.append(self._end() + len(piece))
            self.ids.append(self.drafted.pop(0))
        if self._end() == len(self.text):
            return
        start = max(0, len(self.ends) - self.translation.draft_lookbehind)
        while start and self.text[self.ends[start - 1]] & 0xC0 == 0x80:  # within a character
            start -= 1
        begin = self.ends[start - 1] if start else 0
        try:
            window, num_bytes = utf_8_decode(self.text[begin:], "strict", False)
        except UnicodeDecodeError as error:  # no text: go on after it
            self.text, self.ends = self.text[begin + error.end :], []
            return self._cover()
        if begin + num_bytes > self._end():
            ids, ends = self.translation.encode_draft(window)
            self._splice(start, ids, [begin + end for end in ends])
            # What the draft's tokenizer drops is not tried again: the window would grow with it.
            if self.ends:
                self.ends[-1] = begin + num_bytes
            else:
                self.text = self.text[begin + num_bytes :]

    def _splice(self, start: int, ids: list[int], ends: list[int]) -> None:
        """Replace the ids from the segment's `start` on, keeping those that lacked their context in this encoding."""
        first = len(self.ids) - len(self.ends)
        skip = 0
        if start:
            begin, old = self.ends[start - 1], range(start, len(self.ends))
            # Best, both have a token in common; else, both have a token that ends in the same place.
            same = {(self.ends[i], self.ids[first + i]): i for i in old} | {(self.ends[i], None): i for i in old}
            new = [*zip(ends, ids, strict=True)], [(end, None) for end in ends]
            found = [(same[place], j) for places in new for j, place in enumerate(places) if place in same]
            if found:
                start, skip = found[0][0] + 1, found[0][1] + 1
            else:
                skip = sum(end == begin for end in ends)  # a space that belongs to no text
        self.ids[first + start :] = ids[skip:]
        self.ends[start:] = ends[skip:]

    def candidates(self, drafted: list[int], history: list[int], limit: int) -> list[int]:
        """The target's tokens, `limit` at most, for the text that `drafted` adds to the committed one."""
        target, draft = self.translation.target, self.translation.draft
        text, last = b"", None
        for index in drafted:
            piece = draft.piece(index)
            if piece is None:
                last = self.translation.to_target.get(index)
                break
            text += piece
        gap = bytes(self.text[self._end() :])
        if not text.startswith(gap):
            return []
        size = self._window(history)
        context = bytes(self.text[len(self.text) - size :])
        whole, is_whole = _decode(context + text[len(gap) :])
        ids, ends = self.translation.encode_target(whole)
        if size:
            if size not in ends:
                return []  # here the text would merge across the committed tokens
            ids = ids[ends.index(size) + 1 :]
        unusable = (
            i for i, index in enumerate(ids) if index >= self.translation.vocab_size or index in target.specials
        )
        usable = ids[: next(unusable, len(ids))]
        if last is not None and is_whole and len(usable) == len(ids):
            usable.append(last)
        return usable[:limit]

    def _window(self, history: list[int]) -> int:
        """How many bytes of the text the last tokens stand for, from the beginning of a character on."""
        size = best = 0
        for token in history[: -self.translation.target_lookbehind - 1 : -1]:
            piece = self.translation.target.piece(token)
            if piece is None or size == len(self.text):
                break
            size = min(size + len(piece), len(self.text))
            if size and self.text[-size] & 0xC0 != 0x80:
                best = size
        return best


def _decode(data: bytes) -> tuple[str, bool]:
    """Text up to the first byte that is none, and whether that is all of it."""
    try:
        text, num_bytes = utf_8_decode(data, "strict", False)
    except UnicodeDecodeError as error:
        text, num_bytes = data[: error.start].decode(), error.start
    return text, num_bytes == len(data)
