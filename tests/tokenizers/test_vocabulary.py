"""Two tokenizers side by side: what tokens stand for, which ones both have, and which way of drafting that allows."""

import re

import pytest
from transformers import AddedToken

from hf_speculative.tokenizers.vocabulary import Vocabulary, compare_vocabularies, shared_tokens, vocabulary_of
from tests.support import tongues

TEXT = "Hello, world! def f(x):\n\treturn 1  \U0001f642\n"


def shared(tokenizer, draft_tokenizer, *sizes):
    sizes = sizes or (len(tokenizer), len(draft_tokenizer))
    return shared_tokens(vocabulary_of(tokenizer), vocabulary_of(draft_tokenizer), *sizes)


@pytest.mark.parametrize(
    ("tokenizer", "start"),
    [
        (tongues.byte_level(400), ""),
        (tongues.metaspace(500), " "),
        (tongues.metaspace(500, "never"), ""),
        (tongues.in_metaspace(tongues.pair()[2]), ""),
        (tongues.renumbered(tongues.pair()[2]), ""),
    ],
    ids=["byte level", "metaspace always", "metaspace never", "embedded in metaspace", "embedded renumbered"],
)
def test_pieces_are_the_bytes_of_the_text(tokenizer, start):
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert vocabulary.text_of(ids) == (start + TEXT).encode()
    assert vocabulary.adds_space == (start == " ") and vocabulary.letters > 0.9


def test_signs_for_a_space_are_unified():
    byte_level, metaspace, word_piece = tongues.byte_level(400), tongues.metaspace(500), tongues.word_piece(300)
    both = shared(byte_level, metaspace)
    assert both[metaspace.get_vocab()["▁the"]] == byte_level.get_vocab()["Ġthe"]
    assert both[metaspace.get_vocab()["<0xF0>"]] == byte_level.get_vocab()["ð"], "a byte is a byte"
    assert both[metaspace.get_vocab()["a"]] == byte_level.get_vocab()["a"], "rather than <0x61>"
    words = shared(byte_level, word_piece)
    assert words[word_piece.get_vocab()["the"]] == byte_level.get_vocab()["Ġthe"]
    assert words[word_piece.get_vocab()["##e"]] == byte_level.get_vocab()["e"]
    for mapping in (both, words):
        assert len(set(mapping.values())) == len(mapping), "one to one"


def test_special_tokens_are_mapped_by_role():
    target, draft = tongues.byte_level(400, bos="<s>", eos="</s>"), tongues.byte_level(500, bos=None, eos="<|end|>")
    both = shared(target, draft)
    assert both[draft.eos_token_id] == target.eos_token_id
    assert both[draft.pad_token_id] == target.pad_token_id
    assert target.bos_token_id not in both.values()
    # One id for two roles: it stands for the end first.
    alike = tongues.byte_level(400, bos="<|end|>", eos="<|end|>")
    assert shared(alike, target)[target.eos_token_id] == alike.eos_token_id
    assert target.bos_token_id not in shared(alike, target)
    assert shared(target, alike)[alike.eos_token_id] == target.eos_token_id


def test_a_special_token_is_no_text_that_looks_like_it():
    plain, special = tongues.renumbered(tongues.byte_level(400)), tongues.renumbered(tongues.byte_level(400), seed=1)
    plain.add_tokens(["<turn>"])
    special.add_special_tokens({"additional_special_tokens": [AddedToken("<turn>", special=True)]})
    index = special.convert_tokens_to_ids("<turn>")
    assert index not in shared(plain, special)
    plain.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    assert shared(plain, special)[index] == plain.convert_tokens_to_ids("<turn>"), "read again once it has new tokens"


def test_ids_without_a_logit_are_left_out():
    tokenizer, other = tongues.byte_level(400), tongues.renumbered(tongues.byte_level(400))
    both = shared(tokenizer, other, 300, 350)
    assert both and max(both) < 350 and max(both.values()) < 300
    assert shared(tokenizer, other, 1000, 1000) == shared(tokenizer, other), "padding has no token"


EMBEDDED = tongues.pair()[2]
CHOICES = {
    "same": (EMBEDDED, EMBEDDED, "same", "same"),
    "same and longer": (tongues.byte_level(400), tongues.byte_level(420), "same", "same"),
    "renumbered": (EMBEDDED, tongues.renumbered(EMBEDDED), "intersection", "intersection"),
    "other notation": (EMBEDDED, tongues.in_metaspace(EMBEDDED), "intersection", "intersection"),
    "mostly shared": (tongues.byte_level(400), tongues.metaspace(500), "strings", "intersection"),
    "coarser target": (EMBEDDED, tongues.renumbered(tongues.byte_level(300)), "strings", "strings"),
    "finer target": (tongues.renumbered(tongues.byte_level(300)), EMBEDDED, "strings", "strings"),
    "lossy draft": (EMBEDDED, tongues.word_piece(300), "strings", "strings"),
    "letters only": (tongues.characters("abcdefgh"), tongues.characters("hgfe"), "intersection", "intersection"),
    "draft of letters": (EMBEDDED, tongues.characters("abcdefgh"), None, None),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice(name):
    target, draft, greedy, sampled = CHOICES[name]
    assert compare_vocabularies(target, draft).strategy == greedy
    match = compare_vocabularies(target, draft, do_sample=True)
    assert match.strategy == sampled and "\n" not in match.reason
    if sampled != "same":
        assert re.search(r"share [1-9]\d* tokens", match.reason)


def test_a_mapping_of_ones_own_choice():
    finer = tongues.renumbered(tongues.byte_level(300))
    assert compare_vocabularies(EMBEDDED, finer, mapping="intersection").strategy == "intersection"
    assert compare_vocabularies(EMBEDDED, EMBEDDED, mapping="strings").strategy == "strings"
    letters = tongues.characters("abcdefgh")
    match = compare_vocabularies(EMBEDDED, letters, mapping="strings")
    assert match.strategy is None and "the draft's tokenizer loses most of a text" in match.reason
    match = compare_vocabularies(tongues.characters("abc"), tongues.characters("xyz"), mapping="intersection")
    assert match.strategy is None and "no token of text in common" in match.reason
