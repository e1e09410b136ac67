"""Stores of texts to copy from: what they find against brute force, their bounds, their files, their size and time."""

import copy
import json
import pickle
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hf_speculative as hs
from hf_speculative.drafting.suffix.store import SuffixStore
from tests.support import tiny, tongues
from tests.support.drafters import brute_force, suffix_drafter

LETTERS = tongues.characters("abcdefgh ")


def until_end(continuations):
    return [row[: row.index(-1)] if -1 in row else row for row in continuations]


@pytest.mark.parametrize("max_tokens", [40, 100_000])
def test_a_store_finds_the_longest_match(max_tokens):
    rng, store, documents = random.Random(max_tokens), SuffixStore(max_tokens=max_tokens), []
    for _ in range(150):
        document = [rng.randrange(4) for _ in range(rng.randrange(1, 12))]
        store.add(document)
        documents.append(document)
        while sum(len(document) + 1 for document in documents) > max_tokens:
            del documents[0]
        assert store.num_tokens == sum(len(document) + 1 for document in documents)
        assert store.num_documents == len(documents) and len(store._parts) < 10
        context = [rng.randrange(4) for _ in range(9)]
        length, found = store.longest_match(context, 3)
        expected = brute_force(documents, context, 3)
        assert length == expected[0]
        if len(store._parts) == 1:  # each part has votes of its own
            assert until_end(found) == expected[1]


def test_a_full_store_drops_the_oldest(tmp_path):
    store = SuffixStore(max_tokens=12, max_documents=3)
    store.add([2, 3, 4], prompt=[1])
    store.add([1, 2, 5, 6])
    assert store.longest_match([0, 1, 2], 1) == (2, [[3], [5]])
    store.add([1, 2, 8])
    assert store.longest_match([0, 1, 2], 1) == (2, [[5], [8]])
    store.save(tmp_path / "store")
    loaded = SuffixStore.load(tmp_path / "store")
    assert loaded.num_tokens == 9 and loaded.longest_match([0, 1, 2], 1) == (2, [[5], [8]])
    loaded.add([3])
    loaded.add([4])  # one more than three documents
    assert loaded.num_documents == 3 and loaded.longest_match([0, 1, 2], 1) == (2, [[8]])
    loaded.add(list(range(20)))  # of a document that is longer than the store, its end
    assert loaded.longest_match([9, 10], 1) == (2, [[11]]) and loaded.longest_match([8, 9], 1) == (0, [])
    assert loaded.num_tokens == 12


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_copies_of_a_store_are_their_own(duplicate):
    store = SuffixStore()
    store.add([1, 2, 3])
    other = duplicate(store)
    other.add([1, 2, 4])
    assert store.longest_match([1, 2], 1) == (2, [[3]]) and other.longest_match([1, 2], 1) == (2, [[3], [4]])


def test_texts_and_files(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.txt").write_text("abc")
    (tmp_path / "code" / "b.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "code" / ".hidden").write_text("hhh")
    store = SuffixStore(LETTERS)
    store.add_texts(["ab ab"])
    store.add_files(tmp_path / "code", tmp_path / "code" / "a.txt")
    assert store.num_documents == 3 and store.num_tokens == 5 + 1 + 2 * 4
    ids = LETTERS("abc").input_ids
    assert store.longest_match(ids[:2], 1)[1][-1] == ids[2:]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        store.add_files(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"b\.bin' is no UTF-8 text"):
        store.add_files(tmp_path / "code" / "b.bin")
    with pytest.raises(ValueError, match=r"SuffixStore\(tokenizer="):
        SuffixStore().add_texts(["abc"])
    assert store.num_documents == 3, "what is refused adds nothing"


def test_bounds_of_a_store_and_its_ids():
    for name, value in (("max_tokens", 1), ("max_documents", 0), ("max_tokens", 1e6)):
        with pytest.raises(TypeError if value == 1e6 else ValueError, match=f"`{name}={value}`"):
            SuffixStore(**{name: value})
    with pytest.raises(ValueError, match="a document holds -100"):
        SuffixStore().add([5, -100, 3])


@pytest.fixture
def saved(tmp_path):
    store = SuffixStore(LETTERS)
    store.add_texts(["abc abc", "dad"])
    store.save(tmp_path / "store")
    return tmp_path / "store"


def truncated(path):
    path.write_bytes(path.read_bytes()[:-5])


def rewritten(**changes):
    def rewrite(path):
        with open(path, "rb") as file:
            metadata = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
        save_file(load_file(path) | changes, path, metadata)

    return rewrite


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("some other text, longer than a header is"),
        lambda path: save_file({"weight": np.zeros(3)}, path),
        rewritten(tokens=np.array([1, 2, -1, 3], dtype=np.int32)),
        rewritten(tokens=np.array([1, -1, 2, 3, -1, 5, -1], dtype=np.int32)),
        rewritten(documents=np.array([2, 8])),
    ],
)
def test_damaged_files_are_refused(saved, damage):
    assert SuffixStore.load(saved).num_documents == 2
    damage(saved)
    with pytest.raises(ValueError, match=r"store' is (no|a damaged) suffix store"):
        SuffixStore.load(saved)


def test_a_store_of_another_tokenizer(saved, target):
    assert SuffixStore.load(saved, LETTERS).num_documents == 2
    with pytest.raises(ValueError, match="written with another tokenizer"):
        SuffixStore.load(saved, tongues.characters("hgfedcba "))
    with pytest.raises(FileNotFoundError):
        SuffixStore.load(saved.parent / "nowhere")
    store, token = SuffixStore(), tiny.VOCAB + 5
    store.add([token, 3])
    with tiny.refused(target, f"token {token}.* has {tiny.VOCAB}"):
        hs.generate(target, **tiny.prompts(1), max_new_tokens=4, draft_model=suffix_drafter(store))
    # Ids may all be small: the first model decides, also of a store that was saved.
    store = SuffixStore()
    store.check_vocabulary(50_000)
    store.save(saved)
    for one in (store, SuffixStore.load(saved)):
        one.check_vocabulary(50_304)  # padded further
        with pytest.raises(ValueError, match="a vocabulary of 50000"):
            one.check_vocabulary(32_000)
