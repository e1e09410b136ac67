"""Evaluation on data sets: the same prompts under every setting, nothing lost, nothing averaged wrongly."""

import copy
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
import tiny
import tongues
import torch
from datasets import Dataset, DatasetDict
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
)

import hf_speculative as hs
from hf_speculative.call.statistics import RowStatistics, Statistics
from hf_speculative.embedded import FOLDER
from hf_speculative.evaluation import decoder, scores
from hf_speculative.evaluation.journal import BadRow, Call, Difference, Journal, Row
from hf_speculative.evaluation.plan import Plan
from hf_speculative.evaluation.processes import Processes
from hf_speculative.evaluation.rows import read_rows, reader
from hf_speculative.evaluation.settings import Setting, with_baselines
from hf_speculative.verification import RULES

TEXTS = ["def main():\n", "import os\n", "class A:\n    x = 1\n", "for line in lines:\n", "return x"]
OPTIONS = {"max_new_tokens": 12, "num_draft_tokens": (3,), "progress": False}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER / "target")


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny.llama(vocab_size=len(tokenizer), positions=64)


@pytest.fixture(scope="module")
def small(model):
    return tiny.noisy_copy(model)


@pytest.fixture
def evaluate(model, small, tokenizer):
    def call(dataset=TEXTS, draft_model=small, **options):
        return hs.evaluate(model, draft_model, dataset, tokenizer=tokenizer, **OPTIONS | options)

    return call


def counts(evaluation):
    """All that does not depend on the clock."""
    return {
        (setting.name, index): (row.new_ids, row.survival, row.statistics)
        for setting in evaluation.settings
        for index, row in evaluation.rows(setting).items()
    }


def test_totals_are_sums_and_texts_are_plain_decodings(evaluate, model, tokenizer):
    evaluation = evaluate(num_draft_tokens=(2, 4), prompt_lookup_num_tokens=(3,))
    assert evaluation.is_complete and not evaluation.bad_rows and not evaluation.differences
    plain, *settings = evaluation.settings
    assert plain.is_plain and [s.num_draft_tokens for s in settings] == [2, 4, None]
    for index, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt").input_ids
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :].tolist()
        assert all(evaluation.rows(setting)[index].new_ids == expected for setting in evaluation.settings)
        assert evaluation.rows(plain)[index].prompt == text
    for setting in settings:
        totals, calls = evaluation.totals(setting), evaluation.calls[setting.name].values()
        assert totals.num_prompts == totals.num_identical == 5
        assert totals.seconds == sum(call.seconds for call in calls) > 0
        rows = [row.statistics for row in evaluation.rows(setting).values()]
        for name in ("num_new_tokens", "num_draft_tokens", "num_accepted_draft_tokens", "num_rounds"):
            assert getattr(totals.statistics, name) == sum(getattr(row, name) for row in rows) > 0
        assert totals.statistics.num_calls == 5 and totals.statistics.num_target_forwards < 60
        speeds = [
            [call.num_new_tokens / call.seconds for call in evaluation.calls[s.name].values()] for s in (setting, plain)
        ]
        assert totals.speedup.median == statistics.median(own / other for own, other in zip(*speeds, strict=True))
        assert totals.speedup.num_pairs == 5 and totals.speedup.spread is None, "too few for an interval"
        steps = [12 / row.num_rounds for row in rows]
        assert totals.speedup.allowed == statistics.median(steps)
    json.dumps(evaluation.to_dict(), allow_nan=False)


def test_batches_of_any_size_give_the_same_greedy_texts(evaluate):
    one, three = evaluate(), evaluate(batch_size=3)
    for setting in one.settings:
        for index, row in one.rows(setting).items():
            assert three.rows(setting)[index].new_ids == row.new_ids
    assert len(three.calls[three.settings[0].name]) == 2 and three.is_complete


def test_which_tokens_were_drafted_and_with_what_chance(evaluate):
    evaluation = evaluate(temperatures=(0.0, 1.0))
    for setting in evaluation.settings:
        for row in evaluation.rows(setting).values():
            if setting.is_plain:
                assert row.statistics is None and row.survival == []
                continue
            assert "".join(row.pieces) == row.text and len(row.pieces) == len(row.survival) == len(row.new_ids)
            drafted = [chance for chance in row.survival if chance is not None]
            # A stop inside a block cuts an accepted token that counts as the round's own.
            assert len(drafted) - row.statistics.num_accepted_draft_tokens in (0, 1)
            assert all(0 <= chance <= 1 for chance in drafted) and (setting.temperature or set(drafted) <= {1})


def test_sampling_is_seeded_by_batch_and_leaves_the_global_generator_alone(evaluate):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = evaluate(temperatures=(1.0,))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert counts(evaluate(temperatures=(1.0,))) == counts(first)
    assert counts(evaluate(temperatures=(1.0,), seed=1)) != counts(first)
    one, other = evaluate(TEXTS[:1] * 2, temperatures=(1.0,)).rows(Setting(temperature=1.0)).values()
    assert one.new_ids != other.new_ids, "a batch has a seed of its own"


def test_reproducible_sampling_is_compared_token_for_token(evaluate):
    evaluation = evaluate(temperatures=(1.0,), options={"reproducible": True})
    plain, setting = evaluation.settings
    assert evaluation.totals(setting).num_identical == 5 and evaluation.totals(plain).num_identical is None
    assert evaluate(temperatures=(1.0,)).totals(Setting("draft", 3, temperature=1.0)).num_identical is None


def test_a_setting_names_its_rule(evaluate, monkeypatch):
    judged = set()
    for rule in RULES.values():
        monkeypatch.setattr(
            rule, "__call__", lambda self, *args, own=rule.__call__: judged.add(type(self)) or own(self, *args)
        )
    for name, rule in RULES.items():
        judged.clear()
        evaluation = evaluate(TEXTS[:1], temperatures=(1.0,), options={"rule": name})
        assert judged == {rule} and evaluation.settings[1].label == f"draft, 3 tokens, rule={name}"
    with pytest.raises(ValueError, match="did you mean 'block'"):
        Setting("draft", 3, options={"rule": "blok"})
    with pytest.raises(TypeError, match="give its name"):
        Setting("draft", 3, options={"rule": RULES["block"]()})


def kill_after(monkeypatch, num_calls):
    """Ctrl-C in the middle of a later call; the calls that were begun."""
    begun, decode = [], decoder.Decoder.decode

    def interrupted(self, setting, batch, *args):
        begun.append((setting.name, batch))
        if len(begun) > num_calls:
            raise KeyboardInterrupt
        return decode(self, setting, batch, *args)

    monkeypatch.setattr(decoder.Decoder, "decode", interrupted)
    return begun


def test_a_killed_run_goes_on_and_loses_nothing(evaluate, tmp_path, monkeypatch):
    options = {"temperatures": (0.0, 1.0), "batch_size": 2, "results": tmp_path / "out.jsonl"}
    whole = evaluate(**options | {"results": None})
    with monkeypatch.context() as patch:
        begun = kill_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            evaluate(**options)
    so_far = hs.Evaluation.load(tmp_path / "out.jsonl")
    assert not so_far.is_complete and sum(map(len, so_far.calls.values())) == 5
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(
            '{"call": {"setting": "half a caf\u00e9'.encode()[:-1]
        )  # what a kill leaves of a line, and of a character
    with monkeypatch.context() as patch:
        resumed = kill_after(patch, 100)
        evaluation = evaluate(**options)
    assert len(resumed) == 12 - 5 and not set(resumed) & set(begun[:5])
    assert counts(evaluation) == counts(whole) == counts(hs.Evaluation.load(tmp_path / "out.jsonl"))
    with monkeypatch.context() as patch:
        assert not kill_after(patch, 0) and counts(evaluate(**options)) == counts(whole)


def test_the_same_file_takes_further_settings_but_not_another_evaluation(evaluate, small, tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    evaluate(results=path)
    begun = kill_after(monkeypatch, 100)
    evaluation = evaluate(results=path, num_draft_tokens=(5,), temperatures=(0.0, 1.0))
    assert [s.name for s in evaluation.settings] == [
        "plain, greedy",
        "draft, 3 tokens, greedy",
        "draft, 5 tokens, greedy",
        "plain, T=1",
        "draft, 5 tokens, T=1",
    ]
    assert len(begun) == 15 and evaluation.is_complete
    sampled = {"top_p": 0.5, "temperatures": (1.0,)}
    for changed in ({"dataset": TEXTS[:4]}, {"batch_size": 2}, {"seed": 3}, {"max_new_tokens": 13}, sampled):
        with pytest.raises(ValueError, match=r"holds another evaluation.*name another file"):
            evaluate(results=path, **changed)
    with pytest.raises(ValueError, match="holds another evaluation, of other prompts: name"):
        evaluate(results=path, limit=4)
    for content in (b"{}\n", b"\xff\n"):
        (tmp_path / "other.jsonl").write_bytes(content)
        with pytest.raises(ValueError, match="not the file of an evaluation"):
            evaluate(results=tmp_path / "other.jsonl")
    (tmp_path / "empty.jsonl").touch()  # as mktemp does
    assert evaluate(results=tmp_path / "empty.jsonl").is_complete


def test_bad_rows_are_recorded_and_skipped(evaluate, tmp_path):
    lines = [
        '{"prompt": "def f():\\n"}',
        "{broken",
        '{"text": "x"}',
        '{"prompt": ""}',
        '{"prompt": 7}',
        '{"prompt": "x = 1"}',
    ]
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
    assert (
        "line 2 is no JSON: Expecting" in messages[1]
        and "line 8 is" in messages[7]
        and "no 'prompt'" in messages[2]
        and "empty" in messages[3]
    )
    assert "int" in messages[4] and "64 positions" in messages[6]
    assert hs.Evaluation.load(tmp_path / "out.jsonl").bad_rows == evaluation.bad_rows
    with pytest.raises(ValueError, match=r"no row of `dataset` can be used; row 0: .*empty"):
        evaluate(["", ""])


def test_a_batch_that_fails_counts_under_no_setting(evaluate, monkeypatch, tmp_path):
    decode = decoder.Decoder.decode

    def failing(self, setting, batch, *args):
        if batch == 1 and setting.num_draft_tokens == 3:  # that of 2 tokens has been decoded by then
            raise RuntimeError("out of luck")
        return decode(self, setting, batch, *args)

    monkeypatch.setattr(decoder.Decoder, "decode", failing)
    evaluation = evaluate(batch_size=2, num_draft_tokens=(2, 3), results=tmp_path / "out.jsonl")
    assert evaluation.is_complete and [row.index for row in evaluation.bad_rows] == [2, 3]
    assert "out of luck" in evaluation.bad_rows[0].message
    assert {evaluation.totals(setting).num_prompts for setting in evaluation.settings} == {3}
    assert counts(evaluate(batch_size=2, num_draft_tokens=(2, 3), results=tmp_path / "out.jsonl")) == counts(evaluation)


def test_a_setting_that_cannot_work_raises_before_anything_is_decoded(evaluate, monkeypatch):
    begun = kill_after(monkeypatch, 0)
    with pytest.raises(ValueError, match="num_beams"):
        evaluate(settings=[Setting("draft", 2, options={"num_beams": 2})])
    assert not begun


ROWS = [{"q": "a = 1", "turns": [{"role": "user", "content": "hello"}]}, {"q": "b = 2", "turns": []}]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet", "jsonl", "txt"])
def test_files(tmp_path, ending, monkeypatch):
    path = tmp_path / f"data.{ending}"
    data = Dataset.from_list([{"prompt": row["q"]} for row in ROWS])
    match ending:
        case "txt":
            path.write_text("a = 1\n\nb = 2\n")
        case "csv":
            data.to_csv(path)
        case "parquet":
            data.to_parquet(path)
        case _:
            data.to_json(path, lines=ending == "jsonl")
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
    assert (
        reader("# {{ q }}\n{% for turn in turns %}\n{{ turn.role }}\n{% endfor %}", ROWS)(ROWS[0]) == "# a = 1\nuser\n"
    )
    with pytest.raises(ValueError, match="'nowhere' is undefined"):
        reader("{{ nowhere }}", ROWS)(ROWS[0])
    with pytest.raises(ValueError, match="no Jinja template"):
        reader("{{ q ", ROWS)
    with pytest.raises(ValueError, match="no column of the data set, which has q, turns"):
        reader("prompt", ROWS)
    monkeypatch.setattr(
        tokenizer, "chat_template", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>>"
    )
    evaluation = evaluate(ROWS, prompt="turns")
    assert evaluation.rows(evaluation.settings[0])[0].prompt == "<user>hello>>"
    assert [row.index for row in evaluation.bad_rows] == [1]
    evaluation = evaluate(ROWS, prompt=lambda row: row["q"] * 2)
    assert evaluation.rows(evaluation.settings[0])[1].prompt == "b = 2b = 2"


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
    again = evaluate(rows, score="exact_match", references="{{ answer }}")
    assert again.totals(plain).scores == {"exact_match": 1.0}


def test_a_score_that_is_no_number(evaluate, tmp_path):
    options = {"references": lambda row: "", "results": tmp_path / "out.jsonl"}
    evaluation = evaluate(TEXTS[:1], score=lambda predictions, references: float("nan"), **options)
    assert hs.Evaluation.load(tmp_path / "out.jsonl").totals(evaluation.settings[0]).scores == {"score": None}
    json.dumps(evaluation.to_dict(), allow_nan=False)
    with pytest.warns(UserWarning, match=r"the score failed.*'good'"):
        failed = evaluate(TEXTS[:1], score=lambda predictions, references: {"quality": "good"}, **options)
    assert failed.is_complete and failed.totals(failed.settings[0]).scores == {"score": None}, "that of before"


def test_rouge_and_pass_at_1(monkeypatch):
    assert scores.resolve("rouge")(["the cat sat"], ["the cat sat"]) == {"rouge1": 1, "rouge2": 1, "rougeL": 1}
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    with pytest.raises(PermissionError, match="HF_ALLOW_CODE_EVAL=1"):
        scores.resolve("pass@1")
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    row = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(g):\n    assert g(2) == 3\n"}
    texts = ["    return x + 1\n\ndef g(): syntax error", "    return x\n", "    while True: pass\n"]
    assert scores.pass_at_1()(texts[:2], [row] * 2) == {"pass@1": 1 / 2}
    assert scores.pass_at_1(timeout=1)(texts[2:], [row]) == {"pass@1": 0}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dataset": None}, "`dataset` is missing"),
        ({"dataset": {"prompt": TEXTS}}, "pass a datasets.Dataset"),
        ({"dataset": "nowhere.jsonl"}, "no such file"),
        ({"dataset": []}, "no rows"),
        ({"draft_model": {}}, "nothing to evaluate"),
        ({"settings": [Setting("other", 2)]}, "names no draft of this call"),
        ({"settings": [Setting("draft", 2)], "options": {"top_k": 3}}, "`options` has no effect beside `settings`"),
        ({"num_draft_tokens": (2, 2)}, "settings given twice"),
        ({"options": {"repetition_penalty": 1.3}}, "`options={'repetition_penalty': 1.3}` is not about drafting"),
        ({"generation_config": GenerationConfig(do_sample=True)}, "`do_sample` differs between settings"),
        ({"num_draft_tokens": (0,)}, "`num_draft_tokens=0`"),
        ({"temperatures": (-1,)}, "`temperature=-1`"),
        ({"temperature": 0.5}, "`temperature` differs between settings"),
        ({"max_length": 20}, "give `max_new_tokens`"),
        ({"batch_size": 0}, "`batch_size=0`"),
        ({"limit": 0}, "`limit=0`"),
        ({"references": "answer"}, "`references` has no effect without `score`"),
        ({"score": "bleu"}, "needs `references`"),
        ({"score": "bleu", "references": "{{ a }}"}, "is not one of exact_match"),
        ({"score": "no.such:thing", "references": "{{ a }}"}, "cannot be imported"),
        ({"score": 3, "references": "{{ a }}"}, "pass a function of predictions"),
        ({"config": "main"}, "leave it out"),
        ({"rule": "token"}, "`rule` differs between settings: give `options`"),
        ({"split": "test"}, "the data set has none: leave it out"),
        ({"num_draft_tokens": 4}, r"give `num_draft_tokens=\[4\]`"),
        ({"temperatures": 0.5}, r"give `temperatures=\[0.5\]`"),
        ({"top_p": 0.9}, "`top_p=0.9` has no effect on greedy decoding"),
        ({"draft_tokenizers": {"other": None}}, "the drafts are draft"),
    ],
)
def test_what_is_refused(evaluate, options, message, monkeypatch):
    begun = kill_after(monkeypatch, 0)
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(**options)
    assert not begun


def test_drafts_by_name_and_attached(evaluate, model, small, tmp_path, tokenizer):
    with pytest.raises(ValueError, match="two drafts are called draft"):
        evaluate(draft_model=[small, small])
    evaluation = evaluate(draft_model={"a": small, "b": small})
    assert [s.draft for s in evaluation.settings] == [None, "a", "b"]
    small.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    evaluation = evaluate(draft_model=str(tmp_path))
    assert (
        evaluation.header["drafts"] == {str(tmp_path): str(tmp_path)}
        and evaluation.totals(evaluation.settings[1]).speedup
    )
    hs.attach(model, small)
    try:
        attached = evaluate(draft_model=None)
        assert attached.totals(attached.settings[1]).statistics.num_draft_tokens
        assert attached.totals(attached.settings[0]).statistics is None
    finally:
        hs.detach(model)


def test_where_and_how_closely_texts_differ(model, tokenizer):
    prompt = tokenizer("def main():\n")["input_ids"]
    kwargs = {"max_new_tokens": 6, "min_new_tokens": 6, "pad_token_id": 1}
    ids = model.generate(torch.tensor([prompt]), **kwargs, do_sample=False)[0, len(prompt) :].tolist()
    one = decoder.Decoder(model, tokenizer, {}, kwargs, seed=0)
    changed = [*ids[:4], (ids[4] + 1) % 4000, 9]
    found = one.difference(Setting("draft", 2), prompt, Row(3, ids, ""), Row(3, changed, ""))
    with torch.no_grad():
        best, second = model(torch.tensor([prompt + ids[:4]])).logits[0, -1].topk(2).values.tolist()
    assert (found.index, found.position, found.setting) == (3, 4, "draft, 2 tokens, greedy")
    assert found.logit_gap == pytest.approx(best - second, abs=1e-4)
    shorter = one.difference(Setting("draft", 2), prompt, Row(3, ids, ""), Row(3, ids[:2], ""))
    assert shorter.position == 2


def test_differences_are_noted_once_a_text(evaluate, monkeypatch, tmp_path):
    decode = decoder.Decoder.decode

    def altered(self, setting, *args):
        call = decode(self, setting, *args)
        if not setting.is_plain and call.batch == 2:
            call.rows[0].new_ids[5] += 1
        return call

    monkeypatch.setattr(decoder.Decoder, "decode", altered)
    difference, asked = decoder.Decoder.difference, []
    monkeypatch.setattr(decoder.Decoder, "difference", lambda *args: asked.append(1) or difference(*args))
    for _ in range(2):  # the second time from the file
        evaluation = evaluate(results=tmp_path / "out.jsonl")
        assert [(d.index, d.position) for d in evaluation.differences] == [(2, 5)]
        setting = evaluation.settings[1]
        assert evaluation.totals(setting).num_identical == 4 and evaluation.is_identical(setting, 2) is False
    assert len(asked) == 1


def test_encoder_decoder_models(tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(**sizes, decoder_start_token_id=1, pad_token_id=1)
    target = tiny._spread(T5ForConditionalGeneration(config).eval())
    draft = tiny.noisy_copy(target)
    evaluation = hs.evaluate(target, draft, TEXTS, tokenizer=tokenizer, batch_size=2, **OPTIONS)
    plain, setting = evaluation.settings
    totals = evaluation.totals(setting)
    assert totals.num_identical == 5 and totals.statistics.num_accepted_draft_tokens
    ids = tokenizer(TEXTS[1], return_tensors="pt").input_ids
    expected = target.generate(ids, max_new_tokens=12, do_sample=False)[0, 1:].tolist()
    row = evaluation.rows(plain)[1]
    assert row.new_ids == expected
    one = decoder.Decoder(target, tokenizer, {}, {"max_new_tokens": 12, "pad_token_id": 1}, seed=0)
    changed = Row(1, [*row.new_ids[:3], 7, 7], "")
    with torch.no_grad():
        output = target(input_ids=ids, decoder_input_ids=torch.tensor([[1, *row.new_ids[:3]]]))
    best, second = output.logits[0, -1].topk(2).values.tolist()
    found = one.difference(setting, ids[0].tolist(), row, changed)
    assert found.position == 3 and found.logit_gap == pytest.approx(best - second, abs=1e-4)


def test_stopped_rows_have_their_own_lengths(evaluate, tokenizer, model, small):
    for options in ({"stop_strings": ["e"]}, {"eos_token_id": 5, "pad_token_id": 5}):
        alone = evaluate(max_new_tokens=20, **options)
        lengths = [len(row.new_ids) for row in alone.rows(alone.settings[0]).values()]
        together = evaluate(max_new_tokens=20, batch_size=5, **options)
        for setting in together.settings:
            assert [len(row.new_ids) for row in together.rows(setting).values()] == lengths
        assert together.totals(together.settings[1]).num_identical == 5


def test_the_text_of_each_token(model, tokenizer):
    one = decoder.Decoder(model, tokenizer, {}, {}, seed=0)
    for text in ("naïve 😀 — déjà", "x = [1,\n  2]", ""):
        ids = tokenizer(text)["input_ids"]
        pieces = one._pieces(ids)
        assert len(pieces) == len(ids) and "".join(pieces) == tokenizer.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces)


def handmade(seconds, num_rounds=(3, 3), tokens=12):
    """Plain decoding and two settings with these seconds for their calls: a text in `tokens` steps, or so many rounds."""
    settings = with_baselines([Setting("a", 2), Setting("a", 4)])
    journal = Journal({"settings": [s.to_dict() for s in settings], "num_rows": 8, "environment": {}})
    for setting, times, rounds in zip(settings, seconds, (None, *num_rounds), strict=True):
        for batch, time in enumerate(times):
            row, stats = Row(batch, [0] * tokens, ""), None
            if rounds is not None:
                stats = Statistics(num_rounds=rounds, num_draft_tokens=tokens - rounds, num_target_forwards=rounds)
            journal.add(Call(setting.name, batch, time, [row], stats))
    return hs.Evaluation(journal)


A2, A4 = Setting("a", 2), Setting("a", 4)


@pytest.mark.parametrize(
    ("seconds", "setting", "is_clear", "advice"),
    [
        (
            ([4.0], [2.0], [2.5]),
            A2,
            True,
            'take "a, 2 tokens", 2.00x plain decoding, 25.0% faster than the next, "a, 4 tokens".',
        ),
        (
            ([4.0, 4.0], [2.0, 2.6], [2.6, 2.05]),
            A2,
            False,
            'take "a, 2 tokens", 1.77x plain decoding; too close to tell from the next, "a, 4 tokens".',
        ),
        (
            ([2.0], [2.5], [3.0]),
            Setting(),
            True,
            'decode plainly, no draft is faster here; the best, "a, 2 tokens", is at 0.80x plain decoding.',
        ),
        (
            ([2.2, 2.0], [2.0, 2.2], [2.5, 2.5]),
            None,
            False,
            'too close to tell: "a, 2 tokens" is at 1.00x plain decoding, with a 95 % interval of 0.91 to 1.10.',
        ),
    ],
)
def test_the_recommendation(seconds, setting, is_clear, advice):
    evaluation = handmade([(of_setting * 8)[:8] for of_setting in seconds])
    (found,) = evaluation.recommendations
    assert (found.setting, found.is_clear, found.advice) == (setting, is_clear, advice)
    evaluation.header["target"] = "org/big"
    assert str(evaluation) == f"org/big\ngreedy: {advice}"


def test_few_batches_prove_nothing():
    (found,) = handmade([[4.0] * 5, [2.0] * 5, [2.5] * 5]).recommendations
    assert found.setting is None and found.headline == "undecided"
    told = 'too few batches to tell, 5 where it takes 6; so far "a, 2 tokens" is at 2.00x plain decoding.'
    assert found.advice == told
    assert handmade([[], [], []]).recommendations == []


def test_what_the_counts_rule_out_is_noise_and_never_recommended():
    """A machine that was busy while it decoded plainly: 480 steps in 2.47 times the time of 480 target passes."""
    busy = handmade([[2.47] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(12, 12))
    for setting in (A2, A4):
        totals = busy.totals(setting)
        assert (
            totals.speedup.is_noise
            and totals.to_dict()["speedup"] is None
            and totals.statistics.num_target_forwards == 480
        )
        assert str(busy.speedup_of(setting, 7)) == "noise"
    (found,) = busy.recommendations
    assert found.setting.is_plain and found.advice == "decode plainly, no draft is faster here."
    (found,) = handmade([[2.47] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(8, 8)).recommendations
    told = "2.47 times plain's tokens per second by the clock, where its target passes allow 1.50"
    assert found.setting is None and found.noise == (A2, A4) and told in found.advice
    assert found.advice.endswith('; left out as noise: "a, 4 tokens". Measure again on a quiet machine.')
    (found,) = handmade([[2.0] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(8, 4)).recommendations
    assert (found.setting, found.runner_up, found.noise) == (A4, None, (A2,))
    assert found.advice.startswith('take "a, 4 tokens", 1.82x plain decoding; left out as noise: "a, 2 tokens".')


def test_a_busy_while_does_not_move_the_totals():
    seconds = [[4.0] * 40, [2.0, 2.1, 2.2, 2.1] * 10, [2.5] * 40]
    quiet = handmade(seconds)
    seconds[0] = [4.0] * 20 + [40.0] * 9 + [4.0] * 11
    busy = handmade(seconds)
    assert sum(seconds[0]) / sum(seconds[1]) > 5, "a ratio of totals"
    for setting in (A2, A4):
        assert busy.totals(setting).speedup.median == quiet.totals(setting).speedup.median < 2
    assert busy.totals(Setting()).tokens_per_second == quiet.totals(Setting()).tokens_per_second == 3
    assert busy.recommendations[0].advice == quiet.recommendations[0].advice


def test_compiled_passes_may_cost_less_than_plain_ones():
    evaluation = handmade([[2.47] * 8, [1.0] * 8, [1.1] * 8], num_rounds=(12, 12))
    evaluation.header["is_compiled"] = True
    assert str(evaluation.totals(A2).speedup) == "2.47x"
    assert Setting("a", 2, options={"compile": True}).is_compiled and not A2.is_compiled


def test_what_was_attached_tells_whether_passes_are_compiled(model, small, tokenizer, tmp_path):
    options = OPTIONS | {"tokenizer": tokenizer, "results": tmp_path / "out.jsonl", "num_draft_tokens": (2,)}
    options |= {"options": {"compile": False}}  # which takes minutes
    assert hs.evaluate(model, small, TEXTS[:1], **options).header["is_compiled"] is False
    target = hs.attach(copy.deepcopy(model), small, hs.SpeculativeConfig(compile=True))
    with pytest.raises(ValueError, match="another evaluation, whose is_compiled is False and not True"):
        hs.evaluate(target, small, TEXTS[:1], **options)


def test_the_speedup_is_over_what_both_have_done():
    evaluation = handmade([[1.0, 9.0, 5.0], [1.0, 3.0], []], num_rounds=(3, 3))
    totals = evaluation.totals(A2)
    assert (totals.speedup.median, totals.speedup.num_pairs) == (2, 2) and not evaluation.is_complete
    assert evaluation.totals(A4).speedup is None
    assert evaluation.speedup_of(A2, 1).median == 3 and evaluation.speedup_of(A2, 2) is None


def test_the_journal_reads_what_it_writes(tmp_path):
    journal = handmade([[1.0], [2.0], [3.0]]).journal
    journal.header["format"] = 1
    journal.add(BadRow(7, "bad"))
    journal.add(Difference("a, 2 tokens, greedy", 0, 3, 0.25))
    journal.add(Difference("a, 2 tokens, greedy", 1, 0, None))
    journal.add(BadRow(8, "half a pair: \ud83d"))
    journal.scores = {"plain, greedy": {"rouge1": 0.5, "bleu": None}}
    journal.write(tmp_path / "out.jsonl")
    assert Journal.read(tmp_path / "out.jsonl") == journal
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_two_processes_give_the_totals_of_one(model, small, tokenizer, evaluate, tmp_path):
    for part, folder in ((model, "target"), (small, "small")):
        part.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    # With --cpu accelerate would launch one process.
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    command = [
        *("-m", "hf_speculative", "eval", "--dataset", "data.jsonl", "--model", "target", "--draft-model", "small"),
        *("--num-draft-tokens", "3", "--temperature", "0,1", "--max-new-tokens", "12", "--report", "out.html"),
    ]
    done = subprocess.run(
        [sys.executable, *launch, "--mixed_precision=no", "--dynamo_backend=no", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(hs.__file__).parent.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(greedy|T=1): ", done.stdout, re.MULTILINE) == ["greedy", "T=1"], "one report, not two"
    found = hs.Evaluation.load(tmp_path / "eval.jsonl")
    expected = evaluate(draft_model={"small": small}, temperatures=(0.0, 1.0))
    assert found.environment["processes"] == 2 and found.is_complete
    assert counts(found) == counts(expected)
    for setting in expected.settings:
        ours, theirs = found.totals(setting).statistics, expected.totals(setting).statistics
        assert setting.is_plain or RowStatistics.from_dict(ours.to_dict()) == RowStatistics.from_dict(theirs.to_dict())
    assert (tmp_path / "out.html").exists() and not list(tmp_path.glob("*.rank*"))


def test_two_evaluations_do_not_write_one_file(evaluate, tmp_path, monkeypatch):
    """The second would write the file anew, and the calls that the first adds later would be lost."""
    path, decode, refused = tmp_path / "out.jsonl", decoder.Decoder.decode, []

    def meanwhile(self, *args):
        if not refused:
            with pytest.raises(ValueError, match=r"out\.jsonl'`: another evaluation is writing it\. Wait") as raised:
                evaluate(results=path)
            refused.append(raised)
        return decode(self, *args)

    monkeypatch.setattr(decoder.Decoder, "decode", meanwhile)
    first = evaluate(results=path)
    assert refused and counts(hs.Evaluation.load(path)) == counts(first)
    assert counts(evaluate(results=path)) == counts(first), "it lets go of the file when it is done"


def test_a_killed_process_leaves_no_lock(evaluate, tmp_path):
    path = tmp_path / "out.jsonl"
    held = (
        f"import filelock; lock = filelock.FileLock({f'{path}.lock'!r}); lock.acquire(); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(ValueError, match="another evaluation is writing it"):
            evaluate(results=path)
        process.kill()
    assert evaluate(results=path).is_complete


def test_all_processes_hear_that_the_file_is_taken(tmp_path):
    """Those that do not ask for the lock would else wait for the first one for ever."""
    heard = Processes(rank=1, count=2)
    object.__setattr__(heard, "gather", lambda entries: [*entries, "another evaluation is writing it"])
    with pytest.raises(ValueError, match="another evaluation"), Plan({}, [], tmp_path / "out.jsonl").locked(heard):
        pytest.fail("it went on")
    assert not list(tmp_path.iterdir()), "only the first process locks"


def test_a_file_that_a_kill_cut_anywhere_is_gone_on_with(evaluate, tmp_path):
    """Also in the middle of a character of several bytes."""
    path = tmp_path / "out.jsonl"
    evaluate(["é 中文", "b"], results=path)
    whole = path.read_bytes()
    inside = [i for i in range(whole.index(b"\n") + 1, len(whole)) if whole[i] & 0xC0 == 0x80]
    assert inside
    for end in inside:
        path.write_bytes(whole[:end])
        hs.Evaluation.load(path)


def test_a_batch_that_failed_is_not_tried_again(evaluate, tmp_path, monkeypatch):
    """Its prompt would fail in the warm-up as well, and take the finished evaluation with it."""
    inputs = decoder.Decoder._inputs

    def fails(self, prompts):
        if [5, 13] in prompts:
            raise RuntimeError("out of luck")
        return inputs(self, prompts)

    monkeypatch.setattr(decoder.Decoder, "_inputs", fails)
    rows = [{"prompt": [5, 6, 7]}, {"prompt": [5, 13]}, {"prompt": [9, 8]}]
    first = evaluate(rows, results=tmp_path / "out.jsonl")
    assert [row.index for row in first.bad_rows] == [1] and first.is_complete
    begun = kill_after(monkeypatch, 0)
    again = evaluate(rows, results=tmp_path / "out.jsonl")
    assert counts(again) == counts(first) and again.bad_rows == first.bad_rows and not begun


def test_ids_that_the_model_lacks_are_one_bad_row(evaluate):
    """And not the end of the rows that they would be decoded with."""
    rows = [{"prompt": ids} for ids in ([5, 6, 7], [8, 9], [10**7], [11, 12], [-1, 3], [3, 5])]
    evaluation = evaluate(rows, batch_size=4)
    assert [row.index for row in evaluation.bad_rows] == [2, 4] and evaluation.is_complete
    assert {evaluation.totals(setting).num_prompts for setting in evaluation.settings} == {4}


def test_files_of_another_kind_and_none(evaluate, tmp_path):
    evaluation = evaluate(TEXTS[:1], results=tmp_path / "out.jsonl")
    totals, prompts, empty = (tmp_path / name for name in ("eval.json", "prompts.jsonl", "empty"))
    totals.write_text(json.dumps(evaluation.to_dict(), indent=1))
    prompts.write_text('["a"]\n["b"]\n')
    empty.touch()
    for path, reason in (
        (totals, "is not the file of an evaluation, which `--results` names: it holds the totals that `--json` writes"),
        (prompts, "is not the file of an evaluation, which `--results` names: "),
        (empty, "is not the file of an evaluation, which `--results` names: it is empty"),
        (tmp_path, "is no file: name one that `hf-speculative eval --results` wrote"),
        (tmp_path / "nowhere", "is not there: name one that"),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(f'{path} {reason}')}"):
            hs.Evaluation.load(path)


class Counts(LogitsProcessor):
    """Remembers how often it was called."""

    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores.index_fill(1, torch.tensor([self.num_calls]), 1e4)


class EndsEarly(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 7 == 2


def test_what_a_processor_remembers_stays_in_its_call(evaluate):
    evaluation = evaluate(logits_processor=[Counts()])
    assert all(row.new_ids == [*range(1, 13)] for s in evaluation.settings for row in evaluation.rows(s).values())


def test_plain_rows_end_where_they_ended(evaluate, model, tokenizer):
    """Whatever ended them, and whether or not the model has an end token; and a last token that is the padding's counts."""
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    new = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :].tolist()
    both = {"eos_token_id": new[4], "pad_token_id": new[4]}
    for options, length in (
        ({"stopping_criteria": [EndsEarly()]}, None),
        ({"stopping_criteria": [EndsEarly()], "eos_token_id": 3}, None),
        ({"stop_strings": ["\n" + tokenizer.decode(new[0])]}, 1),  # begins in the prompt
        (both, 5),
        ({"generation_config": GenerationConfig(**both)}, 5),
        ({"pad_token_id": new[-1]}, 12),
    ):
        evaluation = evaluate(batch_size=2, **options)
        plain, setting = evaluation.settings
        assert evaluation.totals(setting).num_identical == 5 and not evaluation.differences, options
        if length is not None:
            assert evaluation.rows(plain)[0].new_ids == new[:length]
        alone = evaluate(**options)
        assert all(row.new_ids == alone.rows(plain)[index].new_ids for index, row in evaluation.rows(plain).items())


def test_a_row_that_the_users_function_fails_on_is_one_bad_row(evaluate):
    rows = [{"q": "import os"}, {"other": 1}, {"q": None}]
    found = evaluate(rows, prompt=lambda row: row["q"].strip(), score="exact_match", references=lambda row: row["q"])
    assert [row.message[:14] for row in found.bad_rows] == ["KeyError: 'q'", "AttributeError"]


def test_messages_that_the_chat_template_refuses_are_one_bad_row(model, small, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('users only') }}{% endif %}{{ m.content }}"
        "{% endfor %}"
    )
    rows = [{"prompt": [{"role": role, "content": "x = 1"}]} for role in ("user", "system")]
    found = hs.evaluate(model, small, rows, tokenizer=tokenizer, **OPTIONS)
    ((index, message),) = [(row.index, row.message) for row in found.bad_rows]
    assert index == 1 and "chat template: users only" in message


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_lines_that_are_no_utf8_and_a_byte_order_mark(tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    lines = b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "caf\xe9"}\n\n{"prompt": "b"}\n'
    path.write_bytes(gzip.compress(lines) if ending.endswith(".gz") else lines)
    first, second, third = read_rows(path)
    assert (first, third) == ({"prompt": "a"}, {"prompt": "b"}) and second.index == 1 and "no UTF-8" in second.message


def test_a_data_frame_is_not_taken_for_its_columns():
    with pytest.raises(TypeError, match="from_pandas"):
        read_rows(pd.DataFrame({"prompt": TEXTS}))


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


def test_a_length_is_what_the_settings_name_says(model, small, tokenizer):
    """Whatever the configs say, and what is attached."""
    options = {**OPTIONS, "tokenizer": tokenizer, "num_draft_tokens": (None, 5), "max_new_tokens": 24}
    expected = counts(hs.evaluate(model, small, TEXTS, **options))
    draft, target = copy.deepcopy(small), copy.deepcopy(model)
    draft.generation_config.num_assistant_tokens = 2
    assert counts(hs.evaluate(model, draft, TEXTS, **options)) == expected
    hs.attach(target, small, hs.SpeculativeConfig(num_draft_tokens=2))
    assert counts(hs.evaluate(target, None, TEXTS, **options)) == expected
    hs.detach(target).generation_config.num_assistant_tokens_schedule = "heuristic"
    assert counts(hs.evaluate(target, small, TEXTS, **options)) == expected


def test_what_a_kill_left_of_another_processs_file_is_no_obstacle(evaluate, tmp_path):
    (tmp_path / "out.jsonl.rank1.new").write_text("")
    assert evaluate(results=tmp_path / "out.jsonl").is_complete
    assert evaluate(results=tmp_path / "out.jsonl").is_complete


def test_the_tokenizer_that_was_attached_along_with_a_draft_is_told(model, small, tokenizer):
    other = tongues.renumbered(tokenizer)
    target = hs.attach(copy.deepcopy(model), small, hs.SpeculativeConfig(tokenizer=tokenizer, draft_tokenizer=other))
    evaluation = hs.evaluate(target, None, TEXTS, tokenizer=tokenizer, **OPTIONS)
    assert (
        evaluation.header["draft_tokenizers"] == ["draft"]
        and evaluation.totals(evaluation.settings[1]).num_identical == 5
    )


class Adds(LogitsProcessor):
    def __init__(self, token, amount):
        self.bias, self.lock = {"tokens": {token}, "amount": torch.tensor([amount])}, threading.Lock()

    def __call__(self, input_ids, scores):
        return scores.index_add(1, torch.tensor([*self.bias["tokens"]]), self.bias["amount"][None])


def test_results_of_other_weights_or_processors_are_not_handed_out_as_new(model, small, tokenizer, tmp_path):
    options = OPTIONS | {"tokenizer": tokenizer, "results": tmp_path / "out.jsonl"}
    first = hs.evaluate(model, small, TEXTS[:2], logits_processor=[Adds(7, 1.0)], **options)
    again = hs.evaluate(model, small, TEXTS[:2], logits_processor=[Adds(7, 1.0)], **options)
    assert counts(again) == counts(first), "an equal processor is the same"
    for processor in (Adds(8, 1.0), Adds(7, 5.0)):
        with pytest.raises(
            ValueError, match=r"whose generate\.logits_processor is \['Adds \w+'\] and not \['Adds \w+'\]: name"
        ):
            hs.evaluate(model, small, TEXTS[:2], logits_processor=[processor], **options)
    trained, options["logits_processor"] = copy.deepcopy((model, small)), [Adds(7, 1.0)]
    for one in trained:
        with torch.no_grad():
            one.lm_head.weight.copy_(one.lm_head.weight.roll(7, 0))
    with pytest.raises(ValueError, match="holds another evaluation, of other weights: name another file"):
        hs.evaluate(trained[0], small, TEXTS[:2], **options)
    with pytest.raises(ValueError, match="has another draft 'draft', of other weights: give this one another name"):
        hs.evaluate(model, trained[1], TEXTS[:2], **options)
    both = hs.evaluate(model, {"draft": small, "other": trained[1]}, TEXTS[:2], **options)
    assert both.is_complete and list(both.header["draft_weights"]) == ["draft", "other"]


def test_a_file_of_the_same_model_under_another_generation_config_is_another_evaluation(
    model, small, tokenizer, tmp_path
):
    target, options = copy.deepcopy(model), OPTIONS | {"results": tmp_path / "out.jsonl", "temperatures": (1.0,)}
    hs.evaluate(target, small, TEXTS[:2], tokenizer=tokenizer, **options)
    target.generation_config.top_k = 1
    with pytest.raises(ValueError, match=r"another evaluation, whose generation_config\.top_k is None and not 1: name"):
        hs.evaluate(target, small, TEXTS[:2], tokenizer=tokenizer, **options)
