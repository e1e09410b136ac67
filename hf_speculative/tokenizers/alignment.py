"""A tokenizer's ids for a text that grows, and where in the text each of them ends.

    the text    a   b o a t
    ids        "a"  " "  "boat"
    ends        1    2      6

Only the last few ids may change when more text follows, so that a round encodes as much text at 8,000 tokens as at 80.
"""

from codecs import utf_8_decode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from .vocabulary import shared_tokens, vocabulary_of

LOOKBEHIND = 10


class Encoder:
    """A tokenizer that says where in the text each token ends."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.vocabulary = tokenizer, vocabulary_of(tokenizer)

    def __call__(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids of `text` and the byte at which each ends; nothing where that cannot be told."""
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


@dataclass(eq=False)
class Alignment:
    """A text that grows, in bytes, with a tokenizer's ids for it.

    It is cut where what stands before has no say in what comes, as at special tokens, across which nothing merges: `text` and
    `ends` begin anew there, `ids` go on.

    A tokenizer of six pieces that always takes the longest, and a text of which more is known each time:

    >>> pieces = [b"a", b" ", b"b", b"bo", b"boat", b"t"]
    >>> def encode(text: str) -> tuple[list[int], list[int]]:
    ...     ids, ends = [], [0]
    ...     while ends[-1] < len(text):
    ...         found = max((p for p in pieces if text.encode().startswith(p, ends[-1])), key=len)
    ...         ids.append(pieces.index(found))
    ...         ends.append(ends[-1] + len(found))
    ...     return ids, ends[1:]
    >>> row = Alignment(encode, pieces.__getitem__, lookbehind=10)
    >>> def show(row):
    ...     print([(pieces[index].decode(), end) for index, end in zip(row.ids, row.ends)])
    >>> row.text += b"a bo"
    >>> row.cover()
    >>> show(row)
    [('a', 1), (' ', 2), ('bo', 4)]

    The last few ids are encoded again together with what is new, so that they merge as in the whole text:

    >>> row.text += b"at"
    >>> row.cover()
    >>> show(row)
    [('a', 1), (' ', 2), ('boat', 6)]

    Ids that a model has drafted stay as it wrote them for as long as they spell the text, for it has read them already:

    >>> row.text += b" boat"
    >>> row.drafted = [1, 3, 0, 5, 2]  # " ", "bo", "a", "t", "b"
    >>> row.cover()
    >>> show(row)
    [('a', 1), (' ', 2), ('boat', 6), (' ', 7), ('bo', 9), ('a', 10), ('t', 11)]

    Args:
        encode: ids of a text and the byte at which each ends.
        piece: the bytes of an id; `None` for special tokens.
        lookbehind: how many ids are encoded again together with new text.
        ids: for all that was ever covered, and what comes before the text.
        ends: for each of `ids` since the last cut, the byte of `text` at which it ends.
        text: bytes since that cut.
        drafted: ids that may come next, as far as they spell the text.
    """

    encode: Callable[[str], tuple[list[int], list[int]]]
    piece: Callable[[int], bytes | None]
    lookbehind: int
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    drafted: list[int] = field(default_factory=list)

    def copy(self) -> "Alignment":
        return replace(self, ids=[*self.ids], ends=[*self.ends], text=self.text.copy(), drafted=[*self.drafted])

    @property
    def num_covered(self) -> int:
        """How many bytes of the text have ids."""
        return self.ends[-1] if self.ends else 0

    def append(self, index: int) -> None:
        """The id of all the text that has none yet."""
        self.ids.append(index)
        self.ends.append(len(self.text))

    def cut(self, special: int | None = None) -> None:
        """Begin a new text, after a special token if there is one."""
        if special is not None:
            self.ids.append(special)
            self.drafted = self.drafted[1:] if self.drafted[:1] == [special] else []
        self.text, self.ends = bytearray(), []

    def cover(self) -> None:
        """Ids up to the end of the text, but for the bytes of a character that is not whole yet."""
        self._take_drafted()
        while self.num_covered < len(self.text):
            start = self._start_of_window()
            begin = self.ends[start - 1] if start else 0
            try:
                window, num_bytes = utf_8_decode(self.text[begin:], "strict", False)
            except UnicodeDecodeError as error:  # no text: go on after it
                self.text, self.ends = self.text[begin + error.end :], []
                continue
            if begin + num_bytes > self.num_covered:
                ids, ends = self.encode(window)
                self._splice(start, ids, [begin + end for end in ends])
                # What the tokenizer drops is not tried again: the window would grow with it.
                if self.ends:
                    self.ends[-1] = begin + num_bytes
                else:
                    self.text = self.text[begin + num_bytes :]
            return

    def _take_drafted(self) -> None:
        while self.drafted and self.num_covered < len(self.text):
            piece = self.piece(self.drafted[0])
            if not piece or not self.text.startswith(piece, self.num_covered):
                self.drafted = []
                return
            self.ends.append(self.num_covered + len(piece))
            self.ids.append(self.drafted.pop(0))

    def _start_of_window(self) -> int:
        """The first of the ids since the cut to encode again; none that begins within a character."""
        start = max(0, len(self.ends) - self.lookbehind)
        while start and not begins_character(self.text[self.ends[start - 1]]):
            start -= 1
        return start

    def _splice(self, start: int, ids: list[int], ends: list[int]) -> None:
        """Replace the ids from the text's `start` on, keeping those that lacked their context in this encoding."""
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


def begins_character(byte: int) -> bool:
    """Whether a byte of UTF-8 is the first one of a character."""
    return byte & 0xC0 != 0x80


@dataclass(eq=False)
class Translation:
    """A pair of tokenizers, and the tokens that both have.

    Args:
        vocab_size, draft_vocab_size: width of the models' logits.
        target_lookbehind, draft_lookbehind: how many tokens of the committed text are encoded again together with new text.
    """

    tokenizer: PreTrainedTokenizerBase
    draft_tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    draft_vocab_size: int
    target_lookbehind: int = LOOKBEHIND
    draft_lookbehind: int = LOOKBEHIND

    def __post_init__(self) -> None:
        self.encode_target, self.encode_draft = Encoder(self.tokenizer), Encoder(self.draft_tokenizer)
        self.target, self.draft = self.encode_target.vocabulary, self.encode_draft.vocabulary
        self.to_target = shared_tokens(self.target, self.draft, self.vocab_size, self.draft_vocab_size)
        self.to_draft = {index: draft_index for draft_index, index in self.to_target.items()}
        roles = self.draft.roles
        self.openers = {*self.draft.prefix, roles.get("bos")} - {roles.get("eos")}
        #: stands for a text that is empty: a model must be fed something
        self.filler = next((roles[role] for role in ("bos", "eos", "pad") if role in roles), 0)
