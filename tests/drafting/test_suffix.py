"""Suffix drafts: what a text and a store know against brute force, and calls that use them against plain decoding."""

import random
from unittest.mock import Mock

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.drafting.suffix.growing import GrowingText
from hf_speculative.drafting.suffix.store import SuffixStore
from hf_speculative.drafting.texts import NgramSource
from hf_speculative.schedules import Constant
from tests.support import tiny, tongues
from tests.support.drafters import brute_force, suffix_drafter
from tests.support.plain import agrees


@pytest.mark.parametrize("most", [1, 3, 23])
@pytest.mark.parametrize("num_letters", [1, 2, 4])
def test_a_text_finds_the_longest_match(most, num_letters):
    rng, row, text = random.Random(10 * most + num_letters), GrowingText(), []
    for _ in range(60):
        text.append(rng.randrange(num_letters))
        row.extend(text[-1:])
        expected = brute_force([text], text, 7, most, least=1)
        assert row.longest_match(most, 7) == row.copy().longest_match(most, 7) == expected
    row.copy().extend([9])
    assert row.tokens == text


@pytest.mark.parametrize("max_matching_ngram_size", [1, 3])
def test_prompt_lookup_copies_more_than_it_compares(target, max_matching_ngram_size):
    (proposer,) = NgramSource("ngram", max_matching_ngram_size).proposers(target)
    proposer.begin(Mock(rows=[0]), tiny.VOCAB)
    place, copied = proposer.place_after(0, [*range(10, 40), 10, 11, 12]), []
    while children := proposer.children(place):
        ((_, token, place),) = children
        copied.append(token)
    assert copied == [*range(13, 40), 10, 11, 12]


GREEDY = {"do_sample": False, "pad_token_id": 0}


def config_of(store):
    return {"draft_model": suffix_drafter(store), "speculative_config": hs.SpeculativeConfig(schedule=Constant(6))}


def test_greedy_equals_plain_and_a_second_time_takes_few_passes(target):
    """Batches with stops; what was answered once is known by heart."""
    store = SuffixStore()
    call = tiny.prompts(4, width=9) | GREEDY | {"max_new_tokens": 40, "eos_token_id": [7, 11]}
    expected = target.generate(**call)
    passes = [agrees(target, call, **config_of(store)).num_target_forwards for _ in range(2)]
    assert store.num_documents == 8 and passes[1] <= 2 + -(-(expected.shape[1] - 9) // 6) < passes[0]
    for row, answer in enumerate(expected[:, 9:].tolist()):
        prompt = tiny.unpadded(tiny.prompts(4, width=9), row)["input_ids"][0].tolist()
        answer = answer[: 1 + next((i for i, t in enumerate(answer) if t in (7, 11)), 39)]
        length, found = store.longest_match([*prompt, *answer], 1)
        assert length == len(prompt + answer) and found == [[-1]] * 2, "nothing past the stop"


def test_refill_equals_plain_and_learns_from_rows_that_are_done(target):
    store, inputs = SuffixStore(), tiny.prompts(5, seed=3)
    ids = [tiny.unpadded(inputs, row)["input_ids"][0].tolist() for row in range(5)]
    settings = {"batch_size": 2, "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": 7}
    plain = [completion.new_ids for completion in hs.generate_batches(target, ids, **settings)]
    with hs.record() as stats:
        found = list(hs.generate_batches(target, ids * 2, **settings, **config_of(store)))
    assert [completion.new_ids for completion in found] == plain * 2
    first, second = (sum(c.statistics.num_rounds for c in half) for half in (found[:5], found[5:]))
    assert second < first / 2 and stats.num_accepted_draft_tokens > 0


SAMPLER = type("Sampler", (), {"vocab_size": tiny.VOCAB})


def first_draft(drafter, prompts, num_tokens):
    batch = hs.Batch(torch.tensor(prompts), [0] * len(prompts), max_length=40)
    drafter.begin(batch, SAMPLER)
    return drafter.propose(batch, [num_tokens] * len(prompts), Constant(num_tokens), SAMPLER)


def test_answers_to_the_same_prompt_come_first():
    store = SuffixStore()
    store.add([1, 2, 30, 31], prompt=[8, 1, 2])
    store.add([1, 2, 40, 41], prompt=[9, 1, 2])
    assert first_draft(suffix_drafter(store), [[9, 1, 2], [8, 1, 2]], 3).tokens.tolist() == [[1, 2, 40], [1, 2, 30]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [5, 6, 7]),  # a token for each that matched
        ({"max_factor": 2.0}, [5, 6, 7, 8, 9]),
        ({"max_factor": 0.5}, [5]),
        ({"max_depth": 3}, [5, 6]),
        ({"min_share": 1.0}, [5, 6, 7]),
    ],
)
def test_the_length_of_a_draft(settings, expected):
    draft = first_draft(suffix_drafter(**settings), [[2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]], 5)
    assert draft.tokens.tolist() == [expected] and draft.probs is None


def test_answers_that_are_kept_with_the_model(target):
    call = tiny.prompts(1, seed=8) | GREEDY | {"max_new_tokens": 30, "draft_model": "suffix", "num_draft_tokens": 5}

    def num_passes(**settings):
        with hs.record() as stats:
            hs.generate(target, **as_keywords(call | settings))
        return stats.num_target_forwards

    first, second = num_passes(), num_passes()
    assert first == second, "nothing is kept unasked"
    kept = {"suffix_decoding_max_cached_requests": 4}
    assert num_passes(**kept) == first and num_passes(**kept) < first


@pytest.mark.parametrize("kind", ["file", "folder", "texts", "both", "saved"])
def test_a_corpus(target, tmp_path, kind):
    """What the model is about to say stands in a file: few passes, and the corpus is read once and does not grow."""
    call = GREEDY | {"input_ids": torch.tensor([[3, 4, 5]]), "max_new_tokens": 30}
    expected = target.generate(**call)
    letters = tongues.characters("".join(map(chr, range(0x3041, 0x3041 + tiny.VOCAB))))
    assert len(letters) >= tiny.VOCAB
    text = letters.decode(expected[0])
    assert letters(text).input_ids == expected[0].tolist()
    path = tmp_path / "texts" / "a.txt"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    store, saved = SuffixStore(letters), tmp_path / "store.safetensors"
    store.add_files(path)
    store.save(saved)
    corpora = {"file": str(path), "folder": path.parent, "texts": [text], "both": ["x", path], "saved": saved}
    settings = {"draft_model": "suffix", "corpus": corpora[kind], "tokenizer": letters, "num_draft_tokens": 6}
    for _ in range(2):
        assert agrees(target, call, **settings).num_target_forwards < 10
        path.write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"corpus": "nowhere.txt"}, FileNotFoundError, "nowhere.txt"),
        ({"corpus": [3, 4]}, TypeError, "`corpus` holds an object of type int"),
        ({"corpus": ["a text"]}, ValueError, "no tokenizer beside the model"),
        ({"corpus": ["a"], "suffix_decoding_max_cached_requests": 3}, ValueError, "=3` has no effect beside `corpus`"),
        ({"prompt_lookup_num_tokens": 3}, ValueError, "`draft_model` and `prompt_lookup_num_tokens` are two sources"),
        ({"assistant_confidence_threshold": 0.3}, ValueError, "assistant_confidence_threshold=0.3` has no effect"),
    ],
)
def test_settings_of_the_method(target, settings, error, message):
    tokenizer = {"tokenizer": tongues.characters("abc")} if settings.get("corpus") == "nowhere.txt" else {}
    call = tiny.prompts(1) | {"max_new_tokens": 3, "draft_model": "suffix"} | tokenizer
    with tiny.refused(target, message, error):
        hs.generate(target, **as_keywords(call | settings))
