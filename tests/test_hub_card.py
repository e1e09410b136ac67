"""The card and the settings for vLLM that an evaluation gives."""

import dataclasses
import json
import re
import shlex
import string
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tongues
import transformers
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import hf_speculative as hs
from hf_speculative.cli import app
from hf_speculative.evaluation.journal import Journal
from hf_speculative.hub import card as card_module
from hf_speculative.hub.figures import choose_draft, data_set_name
from hf_speculative.hub.pairing_file import FILE_NAME
from hf_speculative.hub.vllm import export_vllm, validate
from hf_speculative.reports.environment import environment
from hf_speculative.reports.pages import visible

PROMPTS = ("import os\n", "def main():\n")


@pytest.fixture(scope="module")
def pair(target, draft, tmp_path_factory):
    """Target, draft and tokenizer, loaded from folders of their own."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tongues.characters(string.ascii_lowercase + " \n():")
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return *(AutoModelForCausalLM.from_pretrained(folder / name) for name in ("target", "draft")), tokenizer


@pytest.fixture(scope="module")
def results(pair, tmp_path_factory):
    """Two use cases: greedy and sampled; lengths 2, 4 and adaptive; prompt lookup."""
    folder = tmp_path_factory.mktemp("results")
    target, draft, tokenizer = pair
    for name, temperatures in (("code", [0.0, 0.8]), ("chat", [0.0])):
        hs.evaluate(
            target,
            draft,
            [{"prompt": prompt} for prompt in PROMPTS],
            tokenizer=tokenizer,
            num_draft_tokens=[2, 4, None],
            prompt_lookup_num_tokens=[3],
            temperatures=temperatures,
            max_new_tokens=8,
            results=folder / f"{name}.jsonl",
            progress=False,
        )
        by_counts(folder / f"{name}.jsonl")
    return folder


def by_counts(path):
    """Seconds as a quiet machine would have them: a plain step takes 1 s, a pass with a draft in it 1.1 s."""
    journal = Journal.read(path)
    for call in journal.calls.values():
        call.seconds = call.num_target_passes * (1.0 if call.statistics is None else 1.1)
    journal.write(path)


@pytest.fixture(scope="module")
def code(results):
    return hs.Evaluation.load(results / "code.jsonl")


@pytest.fixture(scope="module")
def chat(results):
    return hs.Evaluation.load(results / "chat.jsonl")


def table(text, heading):
    """The rows of a Markdown table under a heading, as lists of cells."""
    part = text[text.index(heading) :].split("\n\n")
    lines = next(block for block in part if block.startswith("|")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


# --- what the card says


def test_acceptance_lengths_by_use_case_and_draft_length(code, chat):
    text = hs.card({"code": code, "chat": chat})
    greedy = table(text, "### Acceptance length, greedy")
    assert greedy[0] == ["use case", "2", "4", "adaptive"]
    assert [row[0] for row in greedy[1:]] == ["code", "chat"]
    setting = next(s for s in code.settings if s.num_draft_tokens == 4 and s.temperature == 0)
    assert greedy[1][2] == f"{code.totals(setting).statistics.mean_acceptance_length:.2f}"
    assert [row[0] for row in table(text, "### Acceptance length, T=0.8")[1:]] == ["code"]


def test_speed_with_hardware_versions_and_command(code, monkeypatch):
    monkeypatch.setitem(code.environment, "command", "hf-speculative eval --dataset /home/me/x.jsonl --stop 'a b'")
    text = hs.card(code)
    rows = table(text, "### Speed")
    assert len(rows) - 1 == sum(not setting.is_plain for setting in code.settings)
    totals = code.totals(hs.Setting("draft", 4))
    row = next(row for row in rows if row[1:3] == ["greedy", "draft, 4 tokens"])
    assert row[6] == f"{totals.speedup.median:.2f}x" and row[5] == f"{totals.tokens_per_second:.1f}"
    assert row[7] == f"{totals.statistics.draft_acceptance_rate:.0%}".replace("%", " %")
    for fact in (
        code.environment["device"],
        "torch ",
        "float32",
        "`max_new_tokens=8`",
        "identical to plain decoding's",
    ):
        assert fact in text
    assert str(code.recommendation(0.0)) in text and "/home/me" not in text
    assert "```sh\nhf-speculative eval --dataset x.jsonl --stop 'a b'\n```" in text


@pytest.mark.parametrize("is_pair", [False, True], ids=["two models", "a folder that names its draft"])
def test_the_four_lines_run(code, pair, tmp_path, capsys, is_pair):
    target, draft, tokenizer = pair
    if is_pair:
        hs.save_pretrained(target, tmp_path, draft_model=draft, tokenizer=tokenizer)
    text = hs.card(code, tmp_path)
    assert (tmp_path / "README.md").read_text() == text
    lines = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert len(lines.splitlines()) == 4
    assert ("from_pretrained(" in lines.splitlines()[1] and str(tmp_path) in lines) == is_pair
    with hs.record() as stats:
        exec(lines, {})
    printed = capsys.readouterr().out.replace(" ", "").strip()  # this tokenizer decodes letters apart
    assert stats.num_calls == 1 and printed.startswith("defmain():") and len(printed) > 20


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
    assert called == [hostile, hostile]
    assert shlex.split(command) == ["hf-speculative", visible(hostile)]

    begin, end = (token.content.strip() for token in tokens if token.type == "html_block")
    assert (begin, end) == ("<!-- hf_speculative card: begin -->", "<!-- hf_speculative card: end -->")
    inline = [token.children for token in tokens if token.type == "inline"]
    assert {part.type for parts in inline for part in parts} == {"text", "code_inline", "softbreak"}
    seen = ["".join(part.content for part in parts) for parts in inline]
    num_settings = sum(not setting.is_plain for setting in evaluation.settings)
    assert seen.count(shown) == num_settings + 2, "a cell of each row: of speeds and of two tables of lengths"
    assert any(line.startswith(f"{shown} drafts for {shown}: it guesses") for line in seen)
    source = " ".join(visible(data_set_name(evaluation)).split())
    assert any(line.startswith(f"{shown}: {source}, {shown}, {shown}, 2 prompts") for line in seen)
    assert f"{shown}; cores" in " ".join(seen)


def test_lookup_alone(pair):
    target, _, tokenizer = pair
    evaluation = hs.evaluate(
        target, None, [{"prompt": "import os\n"}], tokenizer=tokenizer, prompt_lookup_num_tokens=[3], max_new_tokens=4,
        progress=False,
    )  # fmt: skip
    text = hs.card(evaluation)
    assert "drafts for itself" in text and "draft-model" not in ModelCard(text).data.tags
    with hs.record() as stats:
        exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    assert stats.num_calls == 1
    assert export_vllm(evaluation).config == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }


# --- metadata


def test_metadata_read_by_huggingface_hub(code, chat):
    """Every figure comes back through huggingface_hub with the settings it was measured under."""
    card = ModelCard(hs.card({"code": code, "chat": chat}, target_name="org/target", draft_name="org/draft"))
    assert card.data.base_model == "org/target" and card.data.model_name == "draft"
    assert card.data.tags == ["speculative-decoding", "draft-model"] and card.data.library_name == "transformers"
    again = ModelCard(card.content)  # written anew by huggingface_hub itself, which merges results of one data set
    for data in (card.data, again.data):
        lengths = {
            (r.metric_args["use_case"], r.metric_args["temperature"], r.metric_args["num_draft_tokens"]): r
            for r in data.eval_results
            if r.metric_type == "mean_acceptance_length" and "num_draft_tokens" in r.metric_args
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


def test_two_use_cases_of_one_data_set(results):
    """huggingface_hub would write them as one, under the first one's name."""
    one, other = (hs.Evaluation.load(results / "chat.jsonl") for _ in range(2))
    for evaluation in (one, other):
        evaluation.header["dataset"]["name"] = "org/data"
    metadata = yaml.safe_load(hs.card({"one row": one, "many rows": other}).split("---\n")[1])
    datasets = [result["dataset"] for result in metadata["model-index"][0]["results"]]
    assert datasets == [{"name": name, "type": "org/data"} for name in ("one row", "many rows")]


def test_a_folder_is_no_base_model(results, tmp_path, monkeypatch):
    code = hs.Evaluation.load(results / "code.jsonl")
    assert "base_model" not in ModelCard(hs.card(code)).data.to_dict()
    code.header["target"] = "org/name"
    assert ModelCard(hs.card(code)).data.base_model == "org/name"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert "base_model" not in ModelCard(hs.card(code)).data.to_dict()
    assert ModelCard(hs.card(code, target_name="org/name")).data.base_model == "org/name", "what the user says is so"


OTHERS = """---
# a comment of mine
license: mit # and one here
base_model: org/mine
tags:
- mine
# a comment on the data
datasets: [a, b]
model-index:
- name: mine
  author: me
  results:
  - task: {type: text-generation}
    dataset: {type: code, name: My code, args: {n: 1}}
    metrics:
    - {type: pass@1, value: 0.5, date: "2024"}
empty:
---

# My model

Text before.

<!-- hf_speculative card: begin -->
an older section
<!-- hf_speculative card: end -->

Text after.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_existing_card_keeps_what_it_has(code, chat, tmp_path, newline):
    path = tmp_path / "README.md"
    path.write_bytes(OTHERS.replace("\n", newline).encode())
    hs.card({"code": chat, "chat": chat}, path, target_name="org/target")
    hs.card({"code": code, "chat": chat}, path, target_name="org/target")
    once = path.read_bytes()
    hs.card({"code": code, "chat": chat}, path, target_name="org/target")
    assert path.read_bytes() == once, "a second run changes nothing"
    assert once.count(newline.encode()) == once.count(b"\n"), "lines end as they did"
    text = once.decode().replace(newline, "\n")
    assert text.startswith(
        "---\n# a comment of mine\nlicense: mit # and one here\nbase_model: org/mine\ntags:\n- mine\n"
    )
    assert "\n# a comment on the data\ndatasets: [a, b]\nmodel-index:\n" in text and "\nempty:\n" in text
    assert "# My model\n\nText before.\n\n<!--" in text and text.endswith("card: end -->\n\nText after.\n")
    assert "an older section" not in text and text.count("## Speculative decoding") == 1
    metadata = yaml.safe_load(text.split("---\n")[1])
    (model,) = metadata["model-index"]
    theirs, *ours = model["results"]
    assert (model["name"], model["author"]) == ("mine", "me")
    assert theirs == {
        "task": {"type": "text-generation"},
        "dataset": {"type": "code", "name": "My code", "args": {"n": 1}},
        "metrics": [{"type": "pass@1", "value": 0.5, "date": "2024"}],
    }
    assert [result["dataset"]["name"] for result in ours] == ["code", "chat"]
    assert (
        metadata["tags"] == ["mine", "speculative-decoding", "draft-model"]
        and metadata["library_name"] == "transformers"
    )


@pytest.mark.parametrize(
    "before, kept",
    [
        ("# Only text\n", "# Only text\n"),
        ("---\n{license: mit}\n---\n# A\n", "# A\n"),
        ("---\n---\n# A\n", "# A\n"),
        ("\ufeff---\nlicense: mit\n---\n# A\n", "\ufeff---\nlicense: mit\n"),
        ("---\nlicense: |\n  # no comment\n\ntags: mine\n---\n# A\n", "license: |\n  # no comment\n\ntags:\n- mine\n"),
    ],
    ids=["no metadata", "in braces", "empty", "byte order mark", "block text"],
)
def test_other_shapes_of_cards(code, tmp_path, before, kept):
    path = tmp_path / "README.md"
    path.write_text(before, encoding="utf-8")
    text = hs.card(code, path)
    assert kept in text and "## Speculative decoding" in text
    assert "speculative-decoding" in ModelCard(text.removeprefix("\ufeff")).data.tags
    if "license: " in before:
        assert (
            ModelCard(text.removeprefix("\ufeff")).data.license == ModelCard(before.removeprefix("\ufeff")).data.license
        )
    assert hs.card(code, path) == text


@pytest.mark.parametrize(
    "before, message",
    [
        ("---\na: [\n---\n", "not YAML"),
        ("---\n- a\n---\n", "holds a list"),
        ("---\nmodel-index: {a: 1}\n---\n", "model_index"),
        ("<!-- hf_speculative card: begin -->\n", "once"),
        ("<!-- hf_speculative card: end -->\n<!-- hf_speculative card: begin -->\n", "once"),
    ],
)
def test_a_broken_card_is_left_alone(code, tmp_path, before, message):
    path = tmp_path / "README.md"
    path.write_text(before)
    with pytest.raises(ValueError, match=message):
        hs.card(code, path)
    assert path.read_text() == before


@pytest.mark.parametrize(
    "program, command",
    [
        ("/x/hf_speculative/__main__.py", "python -m hf_speculative a"),
        ("/x/s.py", "python s.py a"),
        ("/bin/hs", "hs a"),
    ],
)
def test_the_command_can_be_pasted(target, monkeypatch, program, command):
    monkeypatch.setattr(sys, "argv", [program, "a"])
    assert environment(target)["command"] == command


def test_what_cannot_be_told_apart(code, chat, results):
    with pytest.raises(ValueError, match="of one name"):
        hs.card([code, chat])
    with pytest.raises(ValueError, match="none of the drafts evaluated, draft"):
        hs.card(code, draft_model="other")
    with pytest.raises(ValueError, match="several drafts were evaluated, a, b: choose one"):
        choose_draft({"code": SimpleNamespace(settings=[hs.Setting("a", 2), hs.Setting("b", 2)])}, None)
    with pytest.raises(ValueError, match="two cards"):
        hs.card(code, "README.md", push_to_hub="org/name")
    with pytest.raises(TypeError, match="a dict"):
        hs.card([code.header])
    with pytest.raises(ValueError, match="no evaluation"):
        hs.card([])
    lines = (results / "code.jsonl").read_text().splitlines()
    other = json.loads(lines[0])
    other["header"]["target"] = "org/other"
    (results / "unmeasured.jsonl").write_text(lines[0] + "\n")
    (results / "other.jsonl").write_text("\n".join([json.dumps(other), *lines[1:]]) + "\n")
    with pytest.raises(ValueError, match="nothing was measured"):
        hs.card(results / "unmeasured.jsonl")
    with pytest.raises(ValueError, match="which mark what this writes"):
        hs.card({"<!-- hf_speculative card: end -->": code}, target_name="<!-- hf_speculative card: end -->")
    with pytest.raises(ValueError, match="several targets"):
        hs.card({"a": code, "b": results / "other.jsonl"})


def test_pushed_at_the_commit_that_was_read(code, tmp_path, monkeypatch):
    """Who changes the card meanwhile is not overwritten: the Hub refuses the commit."""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Theirs\n")
    calls = []

    class Api:
        files = ("README.md", FILE_NAME)

        def __init__(self, token):
            calls.append(token)

        def model_info(self, name, revision):
            siblings = [type("File", (), {"rfilename": file}) for file in self.files]
            return type("Info", (), {"sha": "abc", "siblings": siblings})

        def hf_hub_download(self, name, file, revision):
            assert (name, file, revision) == ("org/pair", "README.md", "abc")
            return tmp_path / file

        def upload_file(self, **kwargs):
            calls.append(kwargs)

    monkeypatch.setattr(card_module, "HfApi", Api)
    text = hs.card(code, push_to_hub="org/pair", token="secret", create_pr=True)
    token, upload = calls
    assert token == "secret" and upload.pop("path_or_fileobj").decode() == text and upload.pop("commit_message")
    assert upload == {
        "path_in_repo": "README.md",
        "repo_id": "org/pair",
        "revision": None,
        "parent_commit": "abc",
        "create_pr": True,
    }
    assert text.startswith("---\nlicense: mit\n") and "# Theirs" in text
    assert "hf_speculative.from_pretrained('org/pair')" in text
    monkeypatch.setattr(Api, "files", ())
    text = hs.card(code, push_to_hub="org/pair")
    assert "# Theirs" not in text and "hf_speculative.attach(" in text


# --- vLLM


def test_the_line_for_vllm(code):
    settings = export_vllm(code, draft_model="draft", target_name="org/target", draft_name="org/draft")
    greedy = [s for s in code.settings if s.temperature == 0 and s.num_draft_tokens is not None]
    best = max(greedy, key=lambda setting: code.totals(setting).speedup.median)
    assert settings.config == {
        "method": "draft_model",
        "model": "org/draft",
        "num_speculative_tokens": best.num_draft_tokens,
    }
    assert shlex.split(settings.command)[:4] == ["vllm", "serve", "org/target", "--speculative-config"]
    assert json.loads(shlex.split(settings.command)[4]) == settings.config
    assert "transformers" in settings.notes[0]


@pytest.mark.parametrize("best", ["draft, 2 tokens, greedy", "prompt lookup, up to 3 tokens, greedy"])
def test_what_did_best_is_served(results, best):
    """Whether that is a draft or prompt lookup."""
    code = hs.Evaluation.load(results / "code.jsonl")
    for name, calls in code.calls.items():
        for call in calls.values():
            call.seconds *= 1 if name in (best, "plain, greedy") else 100
    settings = export_vllm(code)
    assert settings.figure.setting.name == best
    assert settings.config["method"] == ("draft_model" if best.startswith("draft") else "ngram")
    assert export_vllm(code, draft_model="draft").config["method"] == "draft_model"


@pytest.mark.parametrize("name", ["-rf", "--trust-remote-code"])
def test_a_name_is_no_option(code, name):
    settings = export_vllm(code, target_name=name, draft_name="-x")
    assert shlex.split(settings.command)[:4] == ["vllm", "serve", f"./{name}", "--speculative-config"]
    assert settings.target == name


def test_a_line_to_paste_hides_nothing(code):
    with pytest.raises(ValueError, match=r"'org/\\u202ename', has characters that cannot be seen: give `target_name=`"):
        export_vllm(code, target_name="org/\u202ename")


def repeated(results, num_rounds, seconds):
    """Eight prompts in which each draft needs so many passes for 8 tokens, and so many seconds where plain needs 8."""
    code = hs.Evaluation.load(results / "code.jsonl")
    for name, calls in code.calls.items():
        plain = name.startswith("plain")
        call = dataclasses.replace(calls[0], rows=[dataclasses.replace(calls[0].rows[0], new_ids=[3] * 8)])
        call.seconds = 8.0 if plain else seconds
        if not plain:
            call.statistics = hs.Statistics(num_rounds=num_rounds, num_spec_steps=num_rounds, num_draft_tokens=8)
        calls |= {batch: dataclasses.replace(call, batch=batch) for batch in range(8)}
    return code


def test_noise_is_neither_served_nor_carded(results):
    """8 plain steps by a busy machine, 8 passes by a quiet one."""
    noise = repeated(results, num_rounds=8, seconds=3.0)
    with pytest.raises(ValueError, match=r"every figure is noise.*2\.67 times .* allow 1\.00: evaluate again"):
        export_vllm(noise)
    text = hs.card(noise)
    assert "2.67x" not in text and {row[6] for row in table(text, "### Speed")[1:]} == {"noise"}
    assert "decode plainly, no draft is faster here" in text
    metrics = [result.metric_type for result in ModelCard(text).data.eval_results]
    assert "speedup" not in metrics and "mean_acceptance_length" in metrics
    quiet = repeated(results, num_rounds=2, seconds=3.0)
    assert not any("too close" in note for note in export_vllm(quiet).notes)
    text = hs.card(quiet)
    assert {row[6] for row in table(text, "### Speed")[1:]} == {"2.67x (2.67\u20132.67)"}
    assert "speedup" in [result.metric_type for result in ModelCard(text).data.eval_results]


def test_what_is_too_close_to_plain_decoding_is_called_that(code):
    assert any("too close to plain decoding, or from too few prompts" in note for note in export_vllm(code).notes)


def test_a_draft_with_another_tokenizer(results):
    code = hs.Evaluation.load(results / "code.jsonl")
    code.header["draft_tokenizers"].append("draft")
    assert export_vllm(code, draft_model="draft").config["use_heterogeneous_vocab"] is True


def test_further_fields_and_temperature(code):
    settings = export_vllm(
        code, draft_model="draft", temperature=0.8, draft_tensor_parallel_size=1, num_speculative_tokens=7
    )
    assert settings.config["draft_tensor_parallel_size"] == 1 and settings.config["num_speculative_tokens"] == 7
    assert settings.figure.setting.temperature == 0.8 and "draft_sample_method" in settings.notes[-1]
    with pytest.raises(ValueError, match=r"`temperature=0.5`.*0.0, 0.8"):
        export_vllm(code, temperature=0.5)


def test_only_adaptive_lengths(results, tmp_path):
    """vLLM has no such thing: the error names what was measured and what to measure."""
    lines = (results / "chat.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    kept = [s for s in header["header"]["settings"] if s["draft"] is None or s["num_draft_tokens"] is None]
    header["header"]["settings"] = [s for s in kept if s["prompt_lookup_num_tokens"] is None]
    names = [hs.Setting(**values).name for values in header["header"]["settings"]]
    calls = [line for line in lines[1:] if json.loads(line)["call"]["setting"] in names]
    (tmp_path / "adaptive.jsonl").write_text("\n".join([json.dumps(header), *calls]) + "\n")
    with pytest.raises(ValueError, match=r"draft, adaptive length, greedy.*num_draft_tokens=\[2, 4, 6\]"):
        export_vllm(tmp_path / "adaptive.jsonl")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tensor_parallel_size": 2}, "did you mean draft_tensor_parallel_size"),
        ({"temperature": 0.5}, "no key 'temperature'"),
        ({"method": "lookahead"}, "method='lookahead': vLLM takes one of draft_model"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens=0: vLLM takes a whole number, 1 or more"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"enforce_eager": 1}, "enforce_eager=1: vLLM takes true or false"),
        ({"model": None}, "model=None: vLLM takes text"),
        ({"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2}, "is more than"),
    ],
)
def test_what_vllm_does_not_document(change, message):
    good = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}
    assert validate(good) == good
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(good | change)


@pytest.mark.parametrize("key", ["method", "model", "num_speculative_tokens"])
def test_what_vllm_needs(key):
    good = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}
    with pytest.raises(ValueError, match=f"needs {key}"):
        validate({name: value for name, value in good.items() if name != key})


# --- the commands


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: CliRunner().invoke(app, list(map(str, args)))


@pytest.mark.parametrize("command", ["card", "export-generate", "export-vllm"])
def test_help_teaches(run, command):
    text = re.sub(r"\x1b\[[0-9;]*m", "", run(command, "--help").output)
    assert f"hf-speculative {command}" in text


def test_commands(run, results, tmp_path):
    printed = run("card", f"code={results / 'code.jsonl'}", f"chat={results / 'chat.jsonl'}")
    assert printed.exit_code == 0 and ModelCard(printed.output).data.tags and "| chat | greedy |" in printed.output
    assert run("card", results / "code.jsonl", "-o", tmp_path, "--draft-name", "org/draft").exit_code == 0
    assert "draft_model='org/draft'" in (tmp_path / "README.md").read_text()
    local = run("card", results / "code.jsonl", "--target-name", "org/target", "--draft-name", tmp_path)
    assert "--draft-name gives its name on the Hub" in local.stderr and "--target-name" not in local.stderr
    served = run("export-vllm", results / "code.jsonl", "--set", "max_model_len=512", "-o", tmp_path / "spec.json")
    assert served.stdout.startswith("vllm serve ") and served.exit_code == 0
    assert json.loads((tmp_path / "spec.json").read_text())["max_model_len"] == 512
    exported = run("export-generate", tmp_path / "repo", "--draft-model", "org/draft", "--repo-id", "org/repo")
    assert exported.exit_code == 0 and (tmp_path / "repo" / "custom_generate" / "generate.py").exists()
    assert (
        "DRAFT_MODEL: str | None = 'org/draft'" in (tmp_path / "repo" / "custom_generate" / "defaults.py").read_text()
    )


def test_what_commands_refuse(run, results, code, tmp_path):
    file, totals = results / "code.jsonl", tmp_path / "eval.json"
    totals.write_text(json.dumps(code.to_dict()))
    for args, message in (
        (("card", f"code={file}", results / "chat.jsonl"), "name the use case of every file"),
        (("card", f"a={file}", f"a={file}"), "two files for one use case"),
        (("card", file, "--create-pr"), "--create-pr has no effect"),
        (("card", results / "nofile"), "nofile is not there: name one that `hf-speculative eval --results` wrote"),
        (("card", totals), "it holds the totals that `--json` writes. Name another"),
        (("card", file, "-o", "/dev/null"), "/dev/null"),
        (("export-vllm", file, "-o", "/dev/null"), "--output /dev/null is no regular file"),
        (("export-vllm", file, "--set", "x"), "write KEY=VALUE"),
        (("export-vllm", file, "--set", "x=1"), "no key 'x'"),
    ):
        result = run(*args)
        assert result.exit_code == 2 and message in result.output, args
