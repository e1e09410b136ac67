"""Compares two tokenizers: what their tokens stand for, which ones both have, and how a draft can propose.

Tokens are compared by the bytes they stand for, whatever sign their tokenizer writes a space with (`Ġ`, `▁`, `##`). Special
tokens are compared by their role. (Timor et al. 2025, arXiv 2502.05202, sections 3 and 4.)
"""

import functools
import re
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

ROLES = ("eos", "bos", "pad", "unk", "sep", "cls", "mask")
#: from this share of common tokens on, tokens are proposed rather than text. Greedy, text is the better guess as soon as
#: some of the likeliest tokens are missing; sampled, a distribution is worth more (measured: docs/different-tokenizers.md).
SAMPLING_SHARE, GREEDY_SHARE = 0.6, 0.98
#: two models of one tokenizer may pad their logits to different widths (Qwen2.5: 151,936 and 152,064): by less than this share
#: of the wider one, and by fewer entries than this
PADDING_SHARE, MOST_PADDING = 0.05, 1024
#: below this share of a text's letters, a tokenizer cannot carry text at all
LEAST_LETTERS = 0.5
SAMPLE = """\
The committee met on 14 March 1987 to discuss what, if anything, could be done about the rising cost of water. "We have \
waited long enough," she said; nobody disagreed. Einige Jahre später wurde das Gebäude verkauft, et personne ne s'en souvient.

def mean(values: list[float]) -> float:
    # The empty list has no mean.
    if not values:
        raise ValueError(f"expected numbers, got {values!r}")
    return sum(values) / len(values)
"""


PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
#: by the characters in which byte-level tokenizers write bytes (GPT-2): printable ones as they are, others from 256 on
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """What each token of a tokenizer stands for. Holds no reference to the tokenizer.

    Attributes:
        tokens: the tokenizer's own strings, to ids.
        pieces: the bytes of each id; `None` for special tokens and for ids without a token.
        specials: special tokens, from id to content.
        roles: `eos`, `bos`, ... to ids; a tokenizer may use one id for several.
        prefix: special tokens that the tokenizer puts before a text, its BOS convention.
        adds_space: a text that begins without a space is encoded as if it had one.
        sample: ids of `SAMPLE`, and `letters` the share of its letters that they hold.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokens: dict[str, int] = tokenizer.get_vocab()
        added = tokenizer.added_tokens_decoder
        self.specials = {index: token.content for index, token in added.items() if token.special}
        self.specials |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        roles = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
        self.roles: dict[str, int] = {role: index for role, index in roles.items() if index is not None}
        self.pieces: list[bytes | None] = [None] * (max(self.tokens.values(), default=-1) + 1)
        self.fallbacks: set[int] = set()
        read = self._reader()
        for token, index in self.tokens.items():
            if index not in self.specials:
                self.pieces[index] = added[index].content.encode() if index in added else read(token, index)
        bare = _encode(tokenizer, "a")
        full = list(tokenizer("a", verbose=False).input_ids)
        starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
        self.prefix = full[: starts[0]] if bare and starts else []
        self.adds_space = self.text_of(bare).startswith(b" ")
        self.sample = _encode(tokenizer, SAMPLE)
        found = self.text_of(self.sample).decode(errors="ignore")
        self.letters = sum(map(str.isalnum, found)) / sum(map(str.isalnum, SAMPLE))

    def _reader(self):
        """How this tokenizer writes bytes, judged by the sign that most of its tokens begin with."""
        counts = {sign: sum(token.startswith(sign) for token in self.tokens) for sign in ("Ġ", "▁", "##")}
        sign = max(counts, key=counts.__getitem__)
        if not counts[sign]:
            return lambda token, index: token.encode()
        return {"Ġ": self._byte_level, "▁": self._metaspace, "##": self._word_piece}[sign]

    def _byte_level(self, token: str, index: int) -> bytes:
        if all(character in BYTE_OF for character in token):
            return bytes(BYTE_OF[character] for character in token)
        return token.encode()

    def _metaspace(self, token: str, index: int) -> bytes:
        if match := BYTE_FALLBACK.fullmatch(token):
            self.fallbacks.add(index)
            return bytes([int(match.group(1), 16)])
        return token.replace("▁", " ").encode()

    def _word_piece(self, token: str, index: int) -> bytes:
        return (token[2:] if token.startswith("##") else f" {token}").encode()

    def piece(self, index: int) -> bytes | None:
        return self.pieces[index] if index < len(self.pieces) else None

    def text_of(self, ids: list[int]) -> bytes:
        return b"".join(self.piece(index) or b"" for index in ids)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encodes text without special tokens, even if it looks like one."""
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids)


_vocabularies: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[tuple, Vocabulary]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Read once a tokenizer, and again when its tokens or roles change."""
    signs = (len(tokenizer), *tokenizer.all_special_ids, *map(str, tokenizer.special_tokens_map.items()))
    signs += tuple(tokenizer("a", verbose=False).input_ids)
    known = _vocabularies.get(tokenizer)
    if known is None or known[0] != signs:
        known = _vocabularies[tokenizer] = (signs, Vocabulary(tokenizer))
    return known[1]


@functools.lru_cache(maxsize=16)
def shared_tokens(target: Vocabulary, draft: Vocabulary, vocab_size: int, draft_vocab_size: int) -> dict[int, int]:
    """The tokens that both have, one to one: draft id to target id. Special tokens first, by role, then by content.

    A special token never stands for an ordinary one that looks like it. Ids without a logit are left out.
    """
    pairs = [(draft.roles[role], target.roles[role]) for role in ROLES if role in draft.roles and role in target.roles]
    contents = {content: index for index, content in target.specials.items()}
    pairs += [(index, contents[content]) for index, content in draft.specials.items() if content in contents]
    ours, theirs = (
        {(piece, index in v.fallbacks): index for index, piece in enumerate(v.pieces[:size]) if piece}
        for v, size in ((target, vocab_size), (draft, draft_vocab_size))
    )
    # A byte may have two tokens, one of them for bytes that are no text: like goes with like first.
    for swapped in (False, True):
        keys = [(index, (piece, is_fallback != swapped)) for (piece, is_fallback), index in theirs.items()]
        pairs += [(index, ours[key]) for index, key in keys if key in ours]
    shared: dict[int, int] = {}
    taken: set[int] = set()
    for index, target_index in pairs:
        fits = index < draft_vocab_size and target_index < vocab_size
        if fits and index not in shared and target_index not in taken:
            shared[index] = target_index
            taken.add(target_index)
    return shared


@functools.lru_cache(maxsize=16)
def _is_same(target: Vocabulary, draft: Vocabulary) -> bool:
    """Whether equal tokens have equal ids; one of the two may have more tokens."""
    fewer, more = sorted((target.tokens, draft.tokens), key=len)
    return all(more.get(token) == index for token, index in fewer.items())


@dataclass(frozen=True)
class VocabularyMatch:
    """How a draft with its own tokenizer can propose for a target.

    Attributes:
        strategy: `same` (ids mean the same), `intersection` (proposals are tokens that both have) or `strings` (the draft's
            text is encoded for the target). `None`: neither can work.
        reason: one line, for people.
    """

    strategy: str | None
    reason: str


def compare_vocabularies(
    tokenizer: PreTrainedTokenizerBase,
    draft_tokenizer: PreTrainedTokenizerBase,
    vocab_size: int | None = None,
    draft_vocab_size: int | None = None,
    do_sample: bool = False,
    mapping: str | None = None,
) -> VocabularyMatch:
    """How `draft_tokenizer`'s model can draft for `tokenizer`'s.

    Args:
        vocab_size, draft_vocab_size: width of the models' logits; ids beyond them cannot be proposed.
        do_sample: when sampling, token-level intersection is better, since it has a distribution; when greedy, strings are,
            since they keep all of the draft's vocabulary.
        mapping: `"intersection"` or `"strings"` to choose one.
    """
    target, draft = vocabulary_of(tokenizer), vocabulary_of(draft_tokenizer)
    vocab_size = len(target.pieces) if vocab_size is None else vocab_size
    draft_vocab_size = len(draft.pieces) if draft_vocab_size is None else draft_vocab_size
    shared = shared_tokens(target, draft, vocab_size, draft_vocab_size)
    # Of the draft's tokens in `SAMPLE`, how many the target has: what the draft gives to the intersection. Of the target's in
    # there, how many the draft has: only these can be guessed.
    of_draft, of_target = _share(draft.sample, shared), _share(target.sample, shared.values())
    share = min(of_draft, of_target)
    if mapping is None and _is_same(target, draft):
        return VocabularyMatch("same", "both vocabularies give the same ids to the same tokens")
    own, other = f"{of_draft:.0%} of the draft's ({len(draft.tokens)} in all)", f"{of_target:.0%} of the target's"
    counted = f"they share {len(shared)} tokens, in text {own} and {other} ({len(target.tokens)})"
    lossy = next((name for name, v in (("draft", draft), ("target", target)) if v.letters < LEAST_LETTERS), None)
    possible = {"strings": lossy is None, "intersection": any(draft.pieces[index] for index in shared)}
    wanted = mapping or ("intersection" if share >= (SAMPLING_SHARE if do_sample else GREEDY_SHARE) else "strings")
    if mapping is None and not possible[wanted] and share >= SAMPLING_SHARE:
        wanted = "intersection"
    if possible[wanted]:
        return VocabularyMatch(wanted, counted)
    if wanted == "strings":
        return VocabularyMatch(None, f"the {lossy}'s tokenizer loses most of a text; {counted}")
    return VocabularyMatch(None, f"they have no token of text in common; {counted}")


def is_padding(vocab_size: int, draft_vocab_size: int) -> bool:
    """Whether padding explains that the logits of two models differ in width, so that ids may mean the same."""
    difference = abs(vocab_size - draft_vocab_size)
    return difference < min(MOST_PADDING, PADDING_SHARE * max(vocab_size, draft_vocab_size))


def _share(ids: list[int], known) -> float:
    known = set(known)
    return sum(index in known for index in ids) / max(1, len(ids))
