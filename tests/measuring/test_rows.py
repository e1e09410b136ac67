"""Rows of data sets and files, and the prompts made of them; a row that cannot be used is told and left out."""

import copy
import gzip
import json

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

import hf_speculative as hs
from hf_speculative.measuring.rows import read_rows, reader
from tests.support.evaluations import OPTIONS, TEXTS


def test_bad_rows_are_recorded_and_skipped(evaluate, tmp_path):
    lines = ['{"prompt": "f():\\n"}', "{broken", '{"text": "x"}', '{"prompt": ""}', '{"prompt": 7}', '{"prompt": "x"}']
    long = json.dumps({"prompt": "x " * 60})
    path = tmp_path / "data.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([*lines, long]) + "\n")
    with gzip.open(path, "ab") as file:
        file.write(b'{"prompt": "caf\xe9"}\n')
    evaluation = evaluate(path, results=tmp_path / "out.jsonl")
    assert evaluation.is_complete and evaluation.totals(evaluation.settings[1]).num_prompts == 2
    messages = {row.index: row.message for row in evaluation.bad_rows}
    assert messages.keys() == {1, 2, 3, 4, 6, 7} and "no UTF-8" in messages[7]
    assert "line 2 is no JSON: Expecting" in messages[1] and "line 8 is" in messages[7] and "no 'prompt'" in messages[2]
    assert "empty" in messages[3]
    assert "int" in messages[4] and "64 positions" in messages[6]
    assert hs.Evaluation.load(tmp_path / "out.jsonl").bad_rows == evaluation.bad_rows
    with pytest.raises(ValueError, match=r"no row of `dataset` can be used; row 0: .*empty"):
        evaluate(["", ""])


ROWS = [{"q": "a = 1", "turns": [{"role": "user", "content": "hello"}]}, {"q": "b = 2", "turns": []}]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet", "jsonl", "txt"])
def test_files(tmp_path, ending, monkeypatch):
    path = tmp_path / f"data.{ending}"
    data = Dataset.from_list([{"prompt": row["q"]} for row in ROWS])
    if ending == "txt":
        path.write_text("a = 1\n\nb = 2\n")
    elif ending.startswith("json"):
        data.to_json(path, lines=ending == "jsonl")
    else:
        getattr(data, f"to_{ending}")(path)
    assert [dict(row) for row in read_rows(path)] == [{"prompt": "a = 1"}, {"prompt": "b = 2"}]
    assert len(read_rows(str(path), limit=1)) == 1
    for option in ("split", "config"):
        with pytest.raises(ValueError, match=f"`{option}='test'`.*leave it out"):
            read_rows(path, **{option: "test"})


def test_files_of_other_machines(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert read_rows(path) == [{"prompt": "a"}, {"prompt": "b"}]
    cut = tmp_path / "data.txt.gz"
    cut.write_bytes(gzip.compress(b"a = 1\n" * 100)[:-9])
    with pytest.raises(ValueError, match=r"data\.txt\.gz is cut off or broken"):
        read_rows(cut)


def test_data_sets(tmp_path):
    data = Dataset.from_list(ROWS)
    assert [row["q"] for row in read_rows(data)] == [row["q"] for row in read_rows(data.to_iterable_dataset())]
    assert len(read_rows(DatasetDict(only=data))) == 2
    splits = DatasetDict(train=data, test=data.select([0]))
    assert len(read_rows(splits, split="test")) == 1
    with pytest.raises(ValueError, match=r"split=None.*train, test: name one"):
        read_rows(splits)
    splits.save_to_disk(tmp_path / "disk")
    assert len(read_rows(tmp_path / "disk", split="train")) == 2


def test_ways_to_a_prompt(evaluate, tokenizer, monkeypatch):
    assert reader("q", ROWS)(ROWS[0]) == "a = 1"
    template = "# {{ q }}\n{% for turn in turns %}\n{{ turn.role }}\n{% endfor %}"
    assert reader(template, ROWS)(ROWS[0]) == "# a = 1\nuser\n"
    with pytest.raises(ValueError, match="'nowhere' is undefined"):
        reader("{{ nowhere }}", ROWS)(ROWS[0])
    with pytest.raises(ValueError, match="no Jinja template"):
        reader("{{ q ", ROWS)
    with pytest.raises(ValueError, match="no column of the data set, which has q, turns"):
        reader("prompt", ROWS)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>>"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    evaluation = evaluate(ROWS, prompt="turns")
    assert evaluation.rows(evaluation.settings[0])[0].prompt == "<user>hello>>"
    assert [row.index for row in evaluation.bad_rows] == [1]
    for raw, said in ((True, "b = 2b = 2"), (False, "<user>b = 2b = 2>>")):
        evaluation = evaluate(ROWS, prompt=lambda row: row["q"] * 2, raw=raw)
        assert evaluation.rows(evaluation.settings[0])[1].prompt == said


def test_ids_that_the_model_lacks_are_one_bad_row(evaluate):
    rows = [{"prompt": ids} for ids in ([5, 6, 7], [8, 9], [10**7], [11, 12], [-1, 3], [3, 5])]
    evaluation = evaluate(rows, batch_size=4)
    assert [row.index for row in evaluation.bad_rows] == [2, 4] and evaluation.is_complete
    assert {evaluation.totals(setting).num_prompts for setting in evaluation.settings} == {4}


def test_a_row_that_the_users_function_fails_on_is_one_bad_row(evaluate):
    rows = [{"q": "import os"}, {"other": 1}, {"q": None}]
    found = evaluate(rows, prompt=lambda row: row["q"].strip(), score="exact_match", references=lambda row: row["q"])
    assert [row.message[:14] for row in found.bad_rows] == ["KeyError: 'q'", "AttributeError"]


def test_a_row_without_a_category_is_measured_too(evaluate):
    found = evaluate([{"prompt": "import os", "topic": "a"}, {"prompt": "def f(", "topic": None}], category="topic")
    assert found.is_complete and not found.bad_rows
    with pytest.raises(ValueError, match="KeyError: 'subject'"):  # of any row
        evaluate([{"prompt": "import os"}], category=lambda row: row["subject"])


def test_messages_that_the_chat_template_refuses_are_one_bad_row(model, small, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% set m = messages[0] %}{{ m.content if m.role == 'user' else raise_exception('no') }}"
    rows = [{"prompt": [{"role": role, "content": "x = 1"}]} for role in ("user", "system")]
    found = hs.evaluate(model, small, rows, tokenizer=tokenizer, **OPTIONS)
    ((index, message),) = [(row.index, row.message) for row in found.bad_rows]
    assert index == 1 and "chat template: no" in message


def test_a_data_frame_is_not_taken_for_its_columns():
    with pytest.raises(TypeError, match="from_pandas"):
        read_rows(pd.DataFrame({"prompt": TEXTS}))
