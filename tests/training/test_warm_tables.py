"""Warm tables: learned in one reading, saved, taken like a draft by name; the text stays plain decoding's."""

import json

import numpy as np
import pytest
import torch

import hf_speculative as hs
from hf_speculative.distillation.teacher import Example
from hf_speculative.drafting.tables import STORE, SUCCESSORS, Tables, TablesSource, holds_tables
from hf_speculative.training import Settings, train
from hf_speculative.training.warm_tables import learn_tables
from tests.support import lessons, tiny
from tests.support.plain import same_as_plain


@pytest.fixture(scope="module")
def taught(tokenizer):
    target = tiny.llama()
    return target, learn_tables(target, tokenizer, lessons.examples(target, 24, length=20))


def test_successors_are_the_targets_likeliest(tokenizer):
    """Of two places of a token the sum of both counts, the likeliest first."""
    target = tiny.llama()
    table = learn_tables(target, tokenizer, [Example((5, 6), (7, 6, 9)), Example((6,), (8,))]).successors
    expected = torch.zeros(tiny.VOCAB)
    for text, places in (([5, 6, 7, 6, 9], (1, 3)), ([6, 8], (0,))):
        probs = target(torch.tensor([text])).logits[0].float().softmax(-1)
        for place in places:
            best = probs[place].topk(8)
            expected[best.indices] += best.values
    assert table[6].tolist() == expected.topk(8).indices.tolist()
    assert (table[5] == -1).all(), "a prompt's tokens are not the target's"


def test_they_are_saved_and_taken_by_their_folder(taught, tmp_path):
    _, tables = taught
    tables.save(tmp_path)
    assert holds_tables(tmp_path) and not holds_tables(tmp_path / "nowhere")
    again = Tables.load(tmp_path)
    assert np.array_equal(again.successors, tables.successors)
    assert again.store.num_documents == tables.store.num_documents == 24
    calls = []
    for draft in ("auto", str(tmp_path)):
        stats = same_as_plain(tiny.llama(), tiny.prompts(3, width=5, seed=0), draft_model=draft, num_draft_tokens=6)
        calls.append(stats.num_target_forwards)
    assert calls[1] < calls[0], "what is known from the start saves passes"


def test_calls_do_not_add_to_the_answers(taught):
    target, tables = taught
    before = tables.store.num_tokens
    same_as_plain(target, tiny.prompts(2), draft_model=TablesSource(tables), num_draft_tokens=4)
    assert tables.store.num_tokens == before


def test_tables_of_another_target_are_refused(taught):
    other = tiny.llama(vocab_size=300)
    with pytest.raises(ValueError, match=r"these tables are of a vocabulary of 61 tokens, and the target's has 300"):
        hs.generate(other, **tiny.prompts(1), draft_model=TablesSource(taught[1]), max_new_tokens=4)


def test_a_damaged_file_is_named(taught, tmp_path):
    taught[1].save(tmp_path)
    (tmp_path / SUCCESSORS).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=rf"{SUCCESSORS} is damaged .*: make the tables anew"):
        Tables.load(tmp_path)
    (tmp_path / STORE).unlink()
    with pytest.raises(FileNotFoundError, match=STORE):
        Tables.load(tmp_path)


@pytest.mark.parametrize("token", [-2, tiny.VOCAB])
def test_ids_outside_the_vocabulary_are_refused(taught, tmp_path, token):
    table = taught[1].successors.copy()
    table[np.flatnonzero((table >= 0).any(1))[0], 0] = token
    Tables(taught[1].store, table).save(tmp_path)
    with pytest.raises(ValueError, match=rf"{SUCCESSORS} is damaged \(ids outside its vocabulary"):
        Tables.load(tmp_path)


def test_a_run_makes_them_with_a_card(tokenizer, tmp_path):
    target = tiny.llama()
    prompts = [{"prompt": ids} for ids in torch.randint(2, tiny.VOCAB, (12, 5)).tolist()]
    settings = Settings(head="tables", steps=1, max_new_tokens=10, batch_size=4)
    result = train(target, prompts, tmp_path, settings, tokenizer=tokenizer)
    assert [point.step for point in result.curve] == [0, 1] and result.kind == "warm tables"
    names = {path.name for path in tmp_path.iterdir()}
    assert {STORE, SUCCESSORS, "README.md", "training.json"} <= names
    assert json.loads((tmp_path / "training.json").read_text())["num_parameters"] == 0
    card = (tmp_path / "README.md").read_text()
    assert "Warm tables" in card and " without tables, " in card and "learning rate" not in card
    assert same_as_plain(target, tiny.prompts(2), draft_model=str(tmp_path), num_draft_tokens=4).num_draft_tokens


def test_a_target_in_training_is_read_without_dropout(tokenizer):
    target = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    examples = [Example((5, 6), (7, 6, 9, 11))]
    expected = learn_tables(target.eval(), tokenizer, examples).successors
    assert np.array_equal(learn_tables(target.train(), tokenizer, examples).successors, expected)
    assert target.training
