"""The file of an evaluation: gone on with after a kill, whole, and never taken for another evaluation's."""

import copy
import json
import re
import threading

import pytest
import torch
from transformers import LogitsProcessor

import hf_speculative as hs
from hf_speculative.measuring import decoder
from hf_speculative.measuring.journal import FORMAT, BadRow, Difference, Journal
from tests.support.evaluations import OPTIONS, TEXTS, counts, handmade, kill_after, watch_calls


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
        file.write('{"call": {"setting": "half a caf\u00e9'.encode()[:-1])  # cut off in a character by a kill
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
    labels = ["plain", "draft, 3 tokens", "draft, 5 tokens", "plain", "draft, 5 tokens"]
    assert [s.label for s in evaluation.settings] == labels and evaluation.temperatures == [0.0, 1.0]
    assert len(begun) == 15 and evaluation.is_complete
    sampled = {"top_p": 0.5, "temperatures": (1.0,)}
    for changed in ({"dataset": TEXTS[:4]}, {"batch_size": 2}, {"seed": 3}, {"max_new_tokens": 13}, sampled):
        with pytest.raises(ValueError, match=r"holds another evaluation.*name another file"):
            evaluate(results=path, **changed)
    with pytest.raises(ValueError, match="holds another evaluation, of other prompts: name"):
        evaluate(results=path, limit=4)
    (tmp_path / "other.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="not the file of an evaluation"):
        evaluate(results=tmp_path / "other.jsonl")
    (tmp_path / "empty.jsonl").touch()  # as mktemp does
    assert evaluate(results=tmp_path / "empty.jsonl").is_complete


def test_the_journal_reads_what_it_writes(tmp_path):
    journal = handmade([[1.0], [2.0], [3.0]]).journal
    journal.header["format"] = FORMAT
    journal.add(BadRow(7, "bad"))
    journal.add(Difference("a, 2 tokens, greedy", 0, 3, 0.25))
    journal.add(Difference("a, 2 tokens, greedy", 1, 0, None))
    journal.add(BadRow(8, "half a pair: \ud83d"))
    journal.scores = {"plain, greedy": {"rouge1": 0.5, "bleu": None}}
    journal.write(tmp_path / "out.jsonl")
    assert Journal.read(tmp_path / "out.jsonl") == journal
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_two_evaluations_do_not_write_one_file(evaluate, tmp_path, monkeypatch):
    """The second would write the file anew, and the calls that the first adds later would be lost."""
    path, refused = tmp_path / "out.jsonl", []

    def meanwhile(*args):
        if not refused:
            with pytest.raises(ValueError, match=r"out\.jsonl'`: another evaluation is writing it\. Wait") as raised:
                evaluate(results=path)
            refused.append(raised)

    watch_calls(monkeypatch, meanwhile)
    first = evaluate(results=path)
    assert refused and counts(hs.Evaluation.load(path)) == counts(first)
    assert counts(evaluate(results=path)) == counts(first), "it lets go of the file when it is done"


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


def test_files_of_another_kind_and_none(evaluate, tmp_path):
    evaluation = evaluate(TEXTS[:1], results=tmp_path / "out.jsonl")
    totals, prompts, empty, older = (tmp_path / name for name in ("eval.json", "prompts.jsonl", "empty", "older"))
    totals.write_text(json.dumps(evaluation.to_dict(), indent=1))
    prompts.write_text('["a"]\n["b"]\n')
    empty.touch()
    older.write_text('{"header": {"format": 1, "settings": [{"draft": "a"}]}}\n{"call": {}}\n')
    other_format = f"was written by another version of hf_speculative, in format 1, and this one reads {FORMAT}"
    for path, reason in (
        (totals, "is not the file of an evaluation: name one that `--results` wrote"),
        (prompts, "is not the file of an evaluation: "),
        (empty, "is not the file of an evaluation: name one that `--results` wrote"),
        (older, f"{other_format}: name another file"),
        (tmp_path, "is no file: name one that `hf-speculative eval --results` wrote"),
        (tmp_path / "nowhere", "is not there: name one that"),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(f'{path} {reason}')}"):
            hs.Evaluation.load(path)


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
        with pytest.raises(ValueError, match=r"\.logits_processor is \['Adds \w+'\] and not \['Adds \w+'\]: name"):
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


def test_another_generation_config_is_another_evaluation(model, small, tokenizer, tmp_path):
    target, options = copy.deepcopy(model), OPTIONS | {"results": tmp_path / "out.jsonl", "temperatures": (1.0,)}
    hs.evaluate(target, small, TEXTS[:2], tokenizer=tokenizer, **options)
    target.generation_config.top_k = 1
    with pytest.raises(ValueError, match=r"another evaluation, whose generation_config\.top_k is None and not 1: name"):
        hs.evaluate(target, small, TEXTS[:2], tokenizer=tokenizer, **options)


def test_other_settings_of_what_is_attached_are_another_evaluation(model, small, tokenizer, tmp_path):
    target, options = copy.deepcopy(model), OPTIONS | {"results": tmp_path / "out.jsonl", "tokenizer": tokenizer}
    for rule in ("token", "block"):
        hs.attach(target, small, config=hs.SpeculativeConfig(rule=rule))
        if rule == "token":
            hs.evaluate(target, dataset=TEXTS[:2], **options)
    with pytest.raises(ValueError, match=r"another evaluation, whose generate\.rule is 'token' and not 'block': name"):
        hs.evaluate(target, dataset=TEXTS[:2], **options)


def test_another_text_of_a_grammars_file_is_another_evaluation(model, small, tokenizer, tmp_path):
    grammar = tmp_path / "form.json"
    options = OPTIONS | {"results": tmp_path / "out.jsonl", "tokenizer": tokenizer, "grammar": str(grammar)}
    for word in ("a", "a", "b"):
        grammar.write_text(json.dumps({"enum": [word]}))
        if word == "a":
            hs.evaluate(model, small, TEXTS[:1], **options)
    with pytest.raises(ValueError, match=r"another evaluation, whose generate\.grammar is"):
        hs.evaluate(model, small, TEXTS[:1], **options)
