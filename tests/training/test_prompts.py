"""Which rows are learned from, and what is said of the others."""

import pytest

from hf_speculative.training.prompts import read_data
from tests.support.command import write_prompts

ROWS = [{"prompt": [1, 2, 3 + i], "answer": "x = 1\n"} for i in range(30)]


def test_some_are_held_out_always_the_same(pair):
    data = read_data(ROWS, *pair, held_out=4)
    assert len(data.held_out) == 4 and len(data.prompts) == 26
    assert not [ids for ids in data.held_out if ids in data.prompts.values()]
    again = read_data([*ROWS[15:], *ROWS[:15]], *pair, held_out=4)
    assert sorted(again.held_out) == sorted(data.held_out), "by what they say, not by where they stand"
    assert len(read_data(ROWS, *pair, held_out=100).held_out) == 6, "a fifth at most"


def test_each_prompt_is_learned_from_once(pair):
    data = read_data(ROWS + ROWS[:10], *pair)
    assert data.num_repeated == 10 and len(data.prompts) + len(data.held_out) == 30


def test_broken_rows_are_named(pair, tmp_path):
    path = write_prompts(tmp_path / "p.jsonl", ['{"prompt": "a"}', "{broken", '{"other": 1}', '{"prompt": "def f("}'])
    data = read_data(path, *pair)
    assert [(row.index, row.message) for row in data.bad_rows] == [
        (1, "line 2 is no JSON: Expecting property name enclosed in double quotes at column 2"),
        (2, "no 'prompt'"),
    ]
    assert len(data.prompts) == len(data.held_out) == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "has no rows"),
        (['{"prompt": "a"}'], "has 1 prompt that can be used, of 1 rows"),
        (['{"prompt": "a"}', "{"], r"2 or more are needed.*Row 1: line 2 is no JSON"),
        (['{"prompt": ""}', "{"], "no row of `dataset` can be used; row 0: prompt 0 is empty"),
        (['{"text": "a"}'], "is no column of the data set, which has text"),
    ],
    ids=str,
)
def test_data_without_enough_prompts(pair, tmp_path, lines, told):
    with pytest.raises(ValueError, match=told):
        read_data(write_prompts(tmp_path / "p.jsonl", lines), *pair)


def test_answers_of_the_data_set(pair):
    target, tokenizer = pair
    rows = [*ROWS, {"prompt": [1, 2], "answer": ""}, {"prompt": [1, 5]}]
    data = read_data(rows, target, tokenizer, answers="answer")
    assert len(data.examples()) == len(data.prompts) and data.examples()[0].new_ids[-1] == tokenizer.eos_token_id
    assert [row.message for row in data.bad_rows] == ["its answer: '' is no text", "its answer: no 'answer'"]
    assert data.num_repeated == read_data(ROWS, target, tokenizer, answers="answer").num_repeated
    data = read_data([*ROWS, {"prompt": [1, 5]}], target, tokenizer, answers=lambda row: row["answer"].strip())
    assert [row.message for row in data.bad_rows] == ["its answer: KeyError: 'answer'"]
    with pytest.raises(ValueError, match="`answers` finds no answer; row 0: its answer"):
        read_data([{"prompt": [1]}, {"prompt": [2]}], target, tokenizer, answers="{{ missing }}")
