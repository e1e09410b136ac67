"""The card that an evaluation gives."""

import copy
import json
import re
import shlex
import string
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import transformers
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import hf_speculative as hs
from hf_speculative.hub import card as card_module
from hf_speculative.hub.card import choose_draft, data_set_name
from hf_speculative.hub.pairing import FILE_NAME
from hf_speculative.reports.pages import visible
from tests.architectures.check import build
from tests.hub.conftest import PROMPTS, by_counts
from tests.support import tongues


def table(text, heading):
    """The rows of a Markdown table under a heading, as lists of cells."""
    lines = next(block for block in text[text.index(heading) :].split("\n\n") if block.startswith("|")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def test_what_was_measured_by_use_case_and_temperature(code, chat, monkeypatch):
    command = "hf-speculative eval --dataset /home/me/x.jsonl --stop 'a b' --results=/home/me/out.jsonl"
    monkeypatch.setitem(code.environment, "command", command)
    text = hs.card({"code": code, "chat": chat})
    titles = ["code, Greedy decoding", "code, Sampling at T=0.8", "chat, Greedy decoding"]
    assert re.findall("^### (.*)", text, re.M)[1:-1] == titles
    names, *rows = table(text, "### code, Greedy decoding")
    totals = code.totals(hs.Setting(draft_model="draft", num_draft_tokens=4))
    row = dict(zip(names, next(row for row in rows if row[0] == "draft, 4 tokens"), strict=True))
    assert row["speedup"] == f"{totals.speedup.median:.2f}x"
    assert row["mean acceptance length"].startswith(f"{totals.statistics.mean_acceptance_length:.2f}\u00b1")
    assert row["acceptance rate"] == f"{100 * totals.statistics.draft_acceptance_rate:.1f} %"
    for fact in (code.environment["device"], "torch ", "float32", "up to 8 new tokens"):
        assert fact in text
    assert str(code.recommendation(0.0)) in text and "/home/me" not in text
    assert "hf-speculative eval --dataset x.jsonl --stop 'a b' --results=out.jsonl\n" in text


@pytest.mark.parametrize("is_pair", [False, True], ids=["two models", "a folder that names its draft"])
def test_the_lines_run(code, pair, tmp_path, capsys, is_pair):
    target, draft, tokenizer = pair
    if is_pair:
        hs.save_pretrained(target, tmp_path, draft_model=draft, tokenizer=tokenizer)
    text = hs.card(code, tmp_path)
    assert (tmp_path / "README.md").read_text() == text
    lines = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert len(lines.splitlines()) == 4 - is_pair
    assert ("from_pretrained(" in lines.splitlines()[1] and str(tmp_path) in lines) == is_pair
    with hs.record() as stats:
        exec(lines, {})
    printed = capsys.readouterr().out.replace(" ", "").strip()  # this tokenizer decodes letters apart
    assert stats.num_calls == 1 and printed.startswith("defmain():") and len(printed) > 20


def test_the_lines_of_an_encoder_decoder_run(code, tmp_path, capsys, monkeypatch):
    """A pipeline would load the decoder of BART alone."""
    model, tokenizer = build("seq2seq", "bart"), tongues.characters(string.ascii_lowercase + " ")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    monkeypatch.setitem(code.header, "is_encoder_decoder", True)
    text = hs.card(code, target_name=str(tmp_path), draft_name=str(tmp_path))
    names: dict = {}
    with hs.record() as stats:
        exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    assert isinstance(names["model"], type(model)) and stats.num_draft_forwards and capsys.readouterr().out


def test_what_the_spread_of_repeats_is(code, monkeypatch):
    assert "with its 95 % interval." in hs.card(code)
    monkeypatch.setitem(code.header, "repeats", 3)
    assert "with the quartiles of repeats." in hs.card(code)


def test_a_draft_in_a_folder_has_the_name_of_the_folder(pair, tmp_path):
    target, draft, tokenizer = pair
    drafts, path = {"/home/me/drafts/small": draft}, tmp_path / "results.jsonl"
    hs.evaluate(
        target, drafts, [*PROMPTS], tokenizer=tokenizer, num_draft_tokens=[2, 4], results=path, progress=False, max_new_tokens=8
    )
    by_counts(path)
    text = hs.card(path, draft_name="org/small")
    assert "/home/me" not in text and "| small, 4 tokens |" in text and '"small, ' in text


@pytest.mark.parametrize("is_pair", [True, False])
def test_a_chat_is_shown_where_the_evaluation_was_one(code, pair, tmp_path, monkeypatch, capsys, is_pair):
    target, draft, tokenizer = pair
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'].lower() | replace('?', '') }}{% endfor %}"
    hs.save_pretrained(target, tmp_path, draft_model=draft, tokenizer=tokenizer)
    monkeypatch.setitem(code.header, "is_chat", True)
    lines = re.search(r"```python\n(.*?)```", hs.card(code, tmp_path if is_pair else None), re.DOTALL)[1]
    assert "def main" not in lines and "[{'role': 'user', 'content': " in lines
    if is_pair:
        exec(lines, {})
        assert len(capsys.readouterr().out) > 20


HOSTILE = {
    "quotes": 'x"); import os; os.abort() #',
    "other quotes": "x'); import os; os.abort() #\\",
    "lines": "x\n```\n<script>alert(1)</script>\n---\nlicense: evil\n---\n# A heading",
    "backticks": "``` <script>alert(1)</script> `",
    "item": "- x",
    "number": "1. x",
    "table": "a | b | c \\| d",
    "markup": "[click](javascript:alert(1)) **bold** <img src=x onerror=alert(1)> &lt; ~~a~~",
    "hidden": "a\u202eb\x1b[31m",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_results_file_names_stays_a_name(results, name, monkeypatch):
    """In the lines to paste, in metadata and in what a reader of Markdown sees."""
    hostile = HOSTILE[name]
    shown = " ".join(visible(hostile).split())
    evaluation = hs.Evaluation.load(results / "code.jsonl")
    evaluation.header |= {"target": hostile, "drafts": {"draft": hostile}}
    evaluation.header["dataset"] = {"name": hostile, "config": hostile, "split": hostile, "limit": None}
    evaluation.environment.update(command=shlex.join(["hf-speculative", hostile]), device=hostile, system=hostile)
    metadata, text = re.fullmatch(r"---\n(.*?)\n---\n(.*)", hs.card({hostile: evaluation}), re.DOTALL).groups()
    data = yaml.safe_load(metadata)
    assert data.keys() == {"tags", "library_name", "model-index"}
    assert {result["dataset"]["name"] for result in data["model-index"][0]["results"]} == {hostile}

    called = []
    pipe = Mock(return_value=[{"generated_text": ""}])
    monkeypatch.setattr(transformers, "pipeline", lambda task, model: called.append(model) or pipe)
    monkeypatch.setattr(hs, "attach", lambda model, draft_model: called.append(draft_model))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    usage, command = (token.content for token in tokens if token.type == "fence")
    exec(usage, {})
    assert called == [hostile, hostile] and shlex.split(command) == ["hf-speculative", visible(hostile)]

    begin, end = (token.content.strip() for token in tokens if token.type == "html_block")
    assert (begin, end) == ("<!-- hf_speculative card: begin -->", "<!-- hf_speculative card: end -->")
    inline = [token.children for token in tokens if token.type == "inline"]
    assert {part.type for parts in inline for part in parts} == {"text", "code_inline", "softbreak"}
    seen = ["".join(part.content for part in parts) for parts in inline]
    assert any(line.startswith(f"{shown} drafts for {shown}: it guesses") for line in seen)
    source = " ".join(visible(data_set_name(evaluation)).split())
    assert any(line.startswith(f"{shown}: {source}. 2 prompts") for line in seen)
    assert f"on {shown}, " in " ".join(seen)


def test_metadata_read_by_huggingface_hub(code, chat):
    card = ModelCard(hs.card({"code": code, "chat": chat}, target_name="org/target", draft_name="org/draft"))
    assert card.data.base_model == "org/target" and card.data.model_name == "draft"
    assert card.data.tags == ["speculative-decoding", "draft-model"] and card.data.library_name == "transformers"
    again = ModelCard(card.content)  # written anew by huggingface_hub itself, which merges results of one data set
    for data in (card.data, again.data):
        lengths = {
            (r.metric_args["use_case"], r.metric_args["temperature"], r.metric_args["num_draft_tokens"]): r
            for r in data.eval_results
            if r.metric_type == "mean_acceptance_length" and "draft_model" in r.metric_args
        }
        assert {key for key in lengths if key[0] == "chat"} >= {("chat", 0.0, 2), ("chat", 0.0, 4)}
        for use_case, evaluation in (("code", code), ("chat", chat)):
            for setting in evaluation.settings:
                if setting.num_draft_tokens is not None:
                    found = lengths[use_case, setting.temperature, setting.num_draft_tokens]
                    expected = evaluation.totals(setting).statistics.mean_acceptance_length
                    assert found.metric_value == pytest.approx(expected, abs=1e-4)
                    assert found.metric_args["draft_model"] == "org/draft"
                    assert found.metric_args["hardware"] == evaluation.environment["device"]


def test_what_cannot_be_told_apart(code, chat, results):
    lines = (results / "code.jsonl").read_text().splitlines()
    other = json.loads(lines[0])
    other["header"]["target"] = "org/other"
    (results / "unmeasured.jsonl").write_text(lines[0] + "\n")
    (results / "other.jsonl").write_text("\n".join([json.dumps(other), *lines[1:]]) + "\n")
    end = "<!-- hf_speculative card: end -->"
    for evaluations, options, message in (
        ([code, chat], {}, "of one name"),
        (code, {"draft_model": "other"}, "none of the drafts evaluated, draft"),
        (code, {"path": "README.md", "push_to_hub": "org/name"}, "two cards"),
        ([code.header], {}, "of type dict"),
        ([], {}, "no evaluation"),
        (results / "unmeasured.jsonl", {}, "nothing was measured"),
        ({end: code}, {"target_name": end}, "which mark what this writes"),
        ({"a": code, "b": results / "other.jsonl"}, {}, "several targets"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            hs.card(evaluations, **options)
    both = [hs.Setting(draft_model=name, num_draft_tokens=2) for name in "ab"]
    with pytest.raises(ValueError, match="several drafts were evaluated, a, b: choose one"):
        choose_draft({"code": SimpleNamespace(settings=both)}, None)


def test_pushed_at_the_commit_that_was_read(code, tmp_path, monkeypatch):
    """Who changes the card meanwhile is not overwritten: the Hub refuses the commit."""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Theirs\n")
    (tmp_path / FILE_NAME).write_text("{}")
    api = Mock()
    monkeypatch.setattr(card_module, "HfApi", api)
    api().model_info.return_value = SimpleNamespace(sha="abc")
    api().snapshot_download.return_value = tmp_path
    text = hs.card(code, push_to_hub="org/pair", token="secret")
    api.assert_called_with(token="secret")
    api().snapshot_download.assert_called_once_with("org/pair", revision="abc", allow_patterns=["README.md", FILE_NAME])
    upload = api().upload_file.call_args.kwargs
    assert upload.pop("path_or_fileobj").decode() == text and upload.pop("commit_message")
    assert upload == {"path_in_repo": "README.md", "repo_id": "org/pair", "parent_commit": "abc"}
    assert text.startswith("---\nlicense: mit\n") and "# Theirs" in text
    assert "hf_speculative.from_pretrained('org/pair')" in text
    api().snapshot_download.return_value = tmp_path / "nothing there"
    text = hs.card(code, push_to_hub="org/pair")
    assert "# Theirs" not in text and "hf_speculative.attach(" in text
