"""Stores of texts to copy from: what they find against brute force, their bounds, their files, their size and time."""

import copy
import json
import pickle
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hf_speculative as hs
from hf_speculative.drafting import SuffixStore
from hf_speculative.drafting.suffix.index import MOST_PLACES, MOST_VOTES
from tests.support import tiny, tongues
from tests.support.drafters import suffix_drafter

LETTERS = tongues.characters("abcdefgh ")


def brute_force(documents, context, num_tokens):
    """The longest match of at least two tokens, and what followed at most `MOST_VOTES` places, without what is past an end."""
    for length in range(len(context), 1, -1):
        found = [
            document[i : i + num_tokens]
            for document in documents
            for i in range(length, len(document) + 1)
            if document[i - length : i] == context[-length:]
        ]
        if found:
            return length, found[-MOST_VOTES:]
    return 0, []


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


def test_a_store_looks_at_the_latest_places_of_many():
    store = SuffixStore()
    store._add_all([[1, 2, 3, 50], *[[9, 2, 3, 60]] * MOST_PLACES])
    assert store.longest_match([1, 2, 3], 1) == (2, [[60]] * MOST_VOTES)


def test_a_full_store_drops_the_oldest(tmp_path):
    store = SuffixStore(max_tokens=12, max_documents=3)
    store.add([1, 2, 3, 4], prompt=[7])
    store.add([1, 2, 5, 6], prompt=[7])
    assert store.answers_to([7]) == [[1, 2, 3, 4], [1, 2, 5, 6]]
    store.add([1, 2, 8])
    assert store.answers_to([7]) == [[1, 2, 5, 6]] and store.longest_match([0, 1, 2], 1) == (2, [[5], [8]])
    store.save(tmp_path / "store")
    loaded = SuffixStore.load(tmp_path / "store")
    assert loaded.num_tokens == 9 and loaded.answers_to([7]) == [[1, 2, 5, 6]]
    loaded.add([3])
    loaded.add([4])  # one more than three documents
    assert loaded.num_documents == 3 and loaded.answers_to([7]) == []
    loaded.add(list(range(20)))  # of a document that is longer than the store, its end
    assert loaded.longest_match([9, 10], 1) == (2, [[11]]) and loaded.longest_match([8, 9], 1) == (0, [])
    assert loaded.num_tokens == 12


def test_empty_stores_and_documents(tmp_path):
    store = SuffixStore()
    store.add([])
    store.save(tmp_path / "empty")
    loaded = SuffixStore.load(tmp_path / "empty")
    assert store.num_documents == loaded.num_tokens == 0 and loaded.longest_match([1, 2], 3) == (0, [])
    loaded.add([1])
    assert loaded.longest_match([1, 1], 3) == (0, [])


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


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_tokens": 1}, ValueError, "`max_tokens=1` keeps nothing"),
        ({"max_documents": 0}, ValueError, "`max_documents=0` keeps nothing"),
        ({"max_tokens": 1e6}, TypeError, "`max_tokens=1000000.0` is of type float"),
        ({"max_documents": True}, TypeError, "`max_documents=True` is of type bool"),
    ],
)
def test_bounds_of_a_store(settings, error, message):
    with pytest.raises(error, match=message):
        SuffixStore(**settings)


def test_token_ids_are_not_negative():
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
            size = int.from_bytes(file.read(8), "little")
            metadata = json.loads(file.read(size))["__metadata__"]
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
        rewritten(prompts=np.array([0])),
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
    store = SuffixStore()
    store.add([tiny.VOCAB + 5, 3])
    config = {"draft_model": suffix_drafter(store)}
    with (
        tiny.CountForwards(target) as forwards,
        pytest.raises(ValueError, match=f"token {tiny.VOCAB + 5}.* has {tiny.VOCAB}"),
    ):
        hs.generate(target, **tiny.prompts(1), max_new_tokens=4, **config)
    assert not forwards.lengths
    # Ids may all be small: the first model decides, also of a store that was saved.
    store = SuffixStore()
    store.check_vocabulary(50_000)
    store.save(saved)
    for one in (store, SuffixStore.load(saved)):
        one.check_vocabulary(50_304)  # padded further
        with pytest.raises(ValueError, match="a vocabulary of 50000"):
            one.check_vocabulary(32_000)


@pytest.mark.slow
def test_processes_share_a_file(saved):
    """Another one reads while this one does, and still does when this one has written anew."""
    code = (
        "import sys; from hf_speculative.drafting import SuffixStore\n"
        f"store = SuffixStore.load({str(saved)!r})\n"
        "print(store.num_documents, flush=True); sys.stdin.readline()\n"
        "store.add([1, 2]); print(store.num_documents, store.longest_match([1, 2], 1)[0])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as reader:
        assert reader.stdout.readline() == "2\n"
        store = SuffixStore.load(saved)
        store.add([8, 8, 8])
        store.save(saved)
        assert reader.communicate("\n")[0] == "3 2\n"
    assert SuffixStore.load(saved).num_documents == 3


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="tells which memory is a file's")
def test_a_loaded_store_does_not_copy_the_file(saved):
    store = SuffixStore.load(saved)
    address = store._parts[0][1].tokens.__array_interface__["data"][0]
    maps = [line.split() for line in MAPS.read_text().splitlines()]
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in maps if line[-1] == str(saved)]
    assert any(first <= address < last for first, last in ranges)


def large_corpus(num_tokens, seed=0):
    """Phrases that come again, and rare words between them."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 50_000, rng.integers(5, 60)) for _ in range(4000)]
    pieces, length = [], 0
    while length < num_tokens:
        pieces.append(
            phrases[rng.integers(len(phrases))] if rng.random() < 0.6 else np.minimum(rng.pareto(0.6, 20), 49_999)
        )
        length += len(pieces[-1])
    return np.concatenate(pieces)[:num_tokens].astype(np.int32)


def test_a_million_tokens_fit_in_memory():
    corpus = large_corpus(999_999)
    tracemalloc.start()
    store = SuffixStore()
    store.add(corpus)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.num_tokens == 1_000_000 and size < 40e6 and peak < 200e6
