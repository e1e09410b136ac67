"""The same text in two vocabularies: kept in step token by token, at a cost that does not grow."""

import random

import pytest

from hf_speculative.tokenizers.alignment import Encoder, Translation
from hf_speculative.tokenizers.transcript import Transcript
from tests.support import tongues

EMBEDDED = tongues.pair()[2]
TEXT = (
    "def naïve(x):\n    '''Über \U0001f642\U0001f642 你好'''\n    return [x, 3.14159]\n\n\nclass A:\n\tpass\n" * 3
    + "The end, said she; and so it was."
)
TOKENIZERS = {
    "byte level": tongues.byte_level(300),
    "byte level, BOS": tongues.byte_level(600, bos="<s>", eos="</s>"),
    "metaspace": tongues.metaspace(500),
    "metaspace, never": tongues.metaspace(500, "never"),
    "embedded": EMBEDDED,
    "embedded in metaspace": tongues.in_metaspace(EMBEDDED, "always", "<s>"),
}
PAIRS = [(a, b) for a in TOKENIZERS for b in TOKENIZERS if a != b]


def translation(tokenizer, draft_tokenizer, **lookbehinds):
    return Translation(tokenizer, draft_tokenizer, len(tokenizer), len(draft_tokenizer), **lookbehinds)


def text_of(transcript) -> bytes:
    """The text of all of the draft's ids, a space that its tokenizer adds left out."""
    draft = transcript.translation.draft
    return draft.text_of(transcript.draft.ids).removeprefix(b" " if draft.adds_space else b"")


@pytest.mark.parametrize("by_token", [True, False], ids=["by token", "strings"])
@pytest.mark.parametrize("names", PAIRS, ids=" to ".join)
def test_the_draft_reads_what_was_committed(names, by_token):
    """Committed a few tokens at a time: the draft's text is the target's, up to a character that is not whole yet."""
    tokenizer, draft_tokenizer = (TOKENIZERS[name] for name in names)
    pair = translation(tokenizer, draft_tokenizer)
    ids = tokenizer(TEXT).input_ids
    row, choose = Transcript(pair, by_token), random.Random(0)
    committed = choose.randint(1, 9)
    row.begin(ids[:committed])
    while committed < len(ids):
        before = list(row.draft.ids)
        new = ids[committed : committed + choose.randint(1, 4)]
        committed += len(new)
        if by_token:  # all but the last were drafted, by the table of shared tokens
            before += [pair.to_draft.get(index, -1) for index in new[:-1]]
        kept = row.advance(ids[:committed], [])
        assert row.draft.ids[:kept] == before[:kept] and kept < len(row.draft.ids), "what stays is as it was"
        assert len(before) - kept <= 18, "only the last few change"
        said = pair.target.text_of(ids[:committed]).removeprefix(b" " if pair.target.adds_space else b"")
        assert said.startswith(text_of(row)) and len(said) - len(text_of(row)) <= 3
    assert text_of(row).decode() == TEXT
    prefix = pair.draft.prefix
    assert row.draft.ids[: len(prefix)] == prefix and not set(row.draft.ids[len(prefix) :]) & set(prefix), "one BOS at most"
    if not by_token and tokenizer is EMBEDDED and draft_tokenizer is TOKENIZERS["embedded in metaspace"]:
        assert row.draft.ids == draft_tokenizer(TEXT).input_ids, "as its own tokenizer writes the whole text"


@pytest.mark.parametrize("names", PAIRS, ids=" to ".join)
def test_any_tokens_at_all(names):
    """Random ids: special tokens, bytes that are no text, ids without a token. Nothing fails, and nothing grows."""
    tokenizer, draft_tokenizer = (TOKENIZERS[name] for name in names)
    pair, choose = translation(tokenizer, draft_tokenizer), random.Random(1)
    for by_token in (True, False):
        row, history = Transcript(pair, by_token), []
        row.begin(history := [choose.randrange(len(tokenizer) + 5) for _ in range(20)])
        for _ in range(60):
            history += [choose.randrange(len(tokenizer) + 5) for _ in range(choose.randint(1, 5))]
            drafted = [choose.randrange(len(draft_tokenizer)) for _ in range(3)]
            before = list(row.draft.ids) + drafted
            candidates = row.candidates(drafted, history[: row.num_read], 3)
            assert len(candidates) <= 3 and all(index < len(tokenizer) for index in candidates)
            kept = row.advance(history, [] if by_token else drafted)
            assert by_token or row.draft.ids[:kept] == before[:kept]
            assert len(row.draft.ids) > kept and all(0 <= index < len(draft_tokenizer) for index in row.draft.ids)
        openers = pair.openers
        assert sum(index in openers for index in row.draft.ids) == len([i for i in pair.draft.prefix if i in openers])


def test_drafted_ids_that_came_true_stay():
    pair = translation(EMBEDDED, TOKENIZERS["embedded in metaspace"])
    row, ids = Transcript(pair, by_token=False), EMBEDDED("import os\nimport").input_ids
    row.begin(ids)
    drafted = TOKENIZERS["embedded in metaspace"](" sys\nimport re", add_special_tokens=False).input_ids
    found = row.candidates(drafted, ids, 10)
    assert EMBEDDED.decode(found) == " sys\nimport re"
    length = len(row.draft.ids)
    # Two of them are accepted, and the target goes on otherwise.
    kept = row.advance([*ids, *found[:2], *EMBEDDED("from").input_ids], drafted)
    assert kept == length + 2
    assert text_of(row) == b"import os\nimport sys\nfrom"


def test_an_unfinished_character_is_not_proposed():
    target, draft = TOKENIZERS["metaspace"], TOKENIZERS["byte level"]
    pair = translation(target, draft)
    row, ids = Transcript(pair, by_token=False), target("done").input_ids
    row.begin(ids)
    drafted = draft(" \U0001f642", add_special_tokens=False).input_ids
    whole = row.candidates(drafted, ids, 9)
    assert pair.target.text_of(whole).decode() == " \U0001f642"
    assert pair.target.text_of(row.candidates(drafted[:-1], ids, 9)) == b" "


def test_a_character_the_target_has_begun_is_finished():
    tokenizer = TOKENIZERS["byte level"]
    pair = translation(tokenizer, TOKENIZERS["metaspace, never"])
    ids = tokenizer("so \U0001f642\U0001f642").input_ids
    row = Transcript(pair, by_token=False)
    row.begin(ids[:-2])
    assert text_of(row).decode() == "so \U0001f642", "two bytes wait"
    drafted = TOKENIZERS["metaspace, never"]("\U0001f642 yes", add_special_tokens=False).input_ids
    found = row.candidates(drafted, ids[:-2], 9)
    assert found[:2] == ids[-2:] and pair.target.text_of(found).endswith(b" yes")


def test_turns_of_a_conversation():
    """Special tokens within the text: mapped by role or content where both have them, else left out."""
    target, draft = TOKENIZERS["byte level, BOS"], TOKENIZERS["metaspace"]
    one, two, three = (target(word, add_special_tokens=False).input_ids for word in ("one", "two", "three"))
    between = [target.pad_token_id, target.bos_token_id]
    ids = [target.bos_token_id, *one, target.eos_token_id, *two, *between, *three]
    for by_token in (True, False):
        row = Transcript(translation(target, draft), by_token)
        for end in range(1, len(ids) + 1):
            row.advance(ids[:end], [])
        assert row.draft.ids.count(draft.bos_token_id) == 1 and row.draft.ids.count(draft.eos_token_id) == 1
        text = draft.decode(row.draft.ids, skip_special_tokens=True)
        assert text.replace(" ", "") == "onetwothree"


@pytest.mark.parametrize("by_token", [True, False], ids=["by token", "strings"])
def test_a_round_costs_the_same_at_any_length(by_token, monkeypatch):
    """Characters encoded in a round, at 1,000 and at 8,000 tokens of context."""
    tokenizer, draft_tokenizer = TOKENIZERS["byte level, BOS"], TOKENIZERS["metaspace"]
    pair, encoded = translation(tokenizer, draft_tokenizer), []
    original = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, text: encoded.append(text) or original(self, text))
    tail = tokenizer(TEXT, add_special_tokens=False).input_ids
    drafted = draft_tokenizer("    return x", add_special_tokens=False).input_ids
    costs = []
    for length in (1_000, 8_000):
        repeated = (tail * (length // len(tail) + 1))[-length:]
        row = Transcript(pair, by_token)
        row.begin(repeated)
        history, rounds = list(repeated), []
        for i in range(0, len(tail) - 3, 3):
            encoded.clear()
            row.candidates(drafted, history, 5)
            history += tail[i : i + 3]
            row.advance(history, drafted)
            rounds.append(sum(map(len, encoded)))
        costs.append(rounds)
    assert costs[0] == costs[1] and max(costs[0]) < 250
