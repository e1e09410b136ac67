"""Scores of a task, computed from the texts of each setting."""

import json

import pytest

import hf_speculative as hs
from tests.support.evaluations import TEXTS


class WordCount:
    name = "words"

    def compute(self, predictions, references):
        assert references == ["one", "two"]
        return {"words": sum(len(text.split()) for text in predictions), "per_text": [1, 2]}


def test_task_scores(evaluate, tmp_path):
    rows = [{"prompt": "x = ", "answer": "one"}, {"prompt": "y = ", "answer": "two"}, {"prompt": "z = "}]
    evaluation = evaluate(rows, score=WordCount(), references="answer", results=tmp_path / "out.jsonl")
    plain, setting = evaluation.settings
    expected = sum(len(row.text.split()) for row in evaluation.rows(plain).values())
    assert evaluation.totals(plain).scores == evaluation.totals(setting).scores == {"words": expected}
    assert [row.index for row in evaluation.bad_rows] == [2]
    assert hs.Evaluation.load(tmp_path / "out.jsonl").totals(plain).scores == {"words": expected}
    texts = [row.text for row in evaluation.rows(plain).values()]
    rows = [{"prompt": row["prompt"], "answer": text} for row, text in zip(rows, texts, strict=False)]
    assert evaluate(rows, score="exact_match", references="{{ answer }}").totals(plain).scores == {"exact_match": 1.0}


def test_a_score_that_is_no_number(evaluate, tmp_path):
    options = {"references": lambda row: "", "results": tmp_path / "out.jsonl"}
    evaluation = evaluate(TEXTS[:1], score=lambda predictions, references: float("nan"), **options)
    assert hs.Evaluation.load(tmp_path / "out.jsonl").totals(evaluation.settings[0]).scores == {"score": None}
    json.dumps(evaluation.to_dict(), allow_nan=False)
    with pytest.warns(UserWarning, match=r"the score failed.*'good'"):
        failed = evaluate(TEXTS[:1], score=lambda predictions, references: {"quality": "good"}, **options)
    assert failed.is_complete and failed.totals(failed.settings[0]).scores == {"score": None}, "that of before"


def test_scores_outlive_a_run_without_a_score_and_settings_without_texts(evaluate, tmp_path):
    path, rows = tmp_path / "out.jsonl", [{"prompt": text, "answer": "x"} for text in TEXTS]
    evaluate(rows, results=path, num_draft_tokens=(2, 3))
    path.write_text(path.read_text().splitlines(keepends=True)[0])  # killed before the first call was over
    scored = evaluate(rows, results=path, score="exact_match", references="answer")
    expected = {setting.label: {"exact_match": 0.0} for setting in scored.settings} | {"draft, 2 tokens": {}}
    assert {setting.label: scored.totals(setting).scores for setting in scored.settings} == expected
    evaluate(rows, results=path, num_draft_tokens=(4,))
    later = hs.Evaluation.load(path)
    found = {setting.label: later.totals(setting).scores for setting in later.settings}
    assert found == expected | {"draft, 4 tokens": {}}
