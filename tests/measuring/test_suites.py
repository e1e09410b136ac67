"""Suites: files of each format become conversations, conversations are held turn by turn, and runs become tables."""

import gzip
import json
import re
from collections import Counter
from types import SimpleNamespace

import datasets
import pytest
import torch

from hf_speculative.measuring import decoder, plan
from hf_speculative.measuring.render import suites as tables
from hf_speculative.measuring.suites import MASKED, SUITES, questions
from hf_speculative.training.prompts import read_data
from tests.support import site_hooks
from tests.support.command import run_command
from tests.support.evaluations import TEMPLATE, counts, kill_after

#: a row of each suite as its file has it, and what the user says
ROWS = {
    "speed-bench/throughput_1k": ({"category": "a", "sub_category": "b", "turns": ["One", "Two"]}, ["One", "Two"]),
    "spec-bench": ({"question_id": 81, "category": "qa", "turns": ["Who?"]}, ["Who?"]),
    "mt-bench": ({"prompt": ["Write.", "Again."], "prompt_id": 1, "category": "writing"}, ["Write.", "Again."]),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "x"}, ["def f():\n"]),
    "gsm8k": ({"question": "How many?", "answer": "1 #### 1"}, ["How many?"]),
    "math-500": ({"problem": "$1 + 1$?", "solution": "2", "answer": "2", "subject": "Algebra"}, ["$1 + 1$?"]),
    "mbpp": (
        {"task_id": 11, "text": "Add numbers.", "code": "x", "test_list": ["assert a", "assert b"]},
        [
            "You are an expert Python programmer, and here is your task: Add numbers. Your code should pass these tests:\n\n"
            "assert a\nassert b"
        ],
    ),
    "alpaca": ({"instruction": "Sort.", "input": "3, 1", "output": "1, 3", "text": "-"}, ["Sort.\n\n3, 1"]),
    "cnn-dm": ({"article": "News.", "highlights": "-", "id": "0"}, ["Summarize:\n\nNews."]),
}
CHATS = [["def f():\n", "x = 1\n"], ["import os\n"], ["class A:\n", "pass\n", "y\n"], ["return x"], ["for a\n", "c\n"]]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def chats(tmp_path):
    rows = [{"turns": turns, "category": "even" if n % 2 == 0 else "odd"} for n, turns in enumerate(CHATS)]
    return write(tmp_path / "chats.jsonl", rows)


def run(*arguments):
    small = ("--new-tokens", "6", "--draft-tokens", "2", "--methods", "draft")
    return run_command("bench", *small, *arguments, columns=200)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_each_format(name, tmp_path):
    row, said = ROWS[name]
    (found,) = questions(f"{name}={write(tmp_path / 'rows.jsonl', [row])}")
    assert found == {"turns": said, "category": row.get("category") or row.get("subject") or ""}
    assert {name.partition("/")[0] for name in ROWS} == SUITES.keys()


def test_a_question_without_input_and_mt_benchs_own_file(tmp_path):
    row = ROWS["alpaca"][0] | {"input": ""}
    assert questions(f"alpaca={write(tmp_path / 'a.jsonl', [row])}")[0]["turns"] == ["Sort."]
    row = {"question_id": 81, "category": "writing", "turns": ["a", "b"]}
    assert questions(f"mt-bench={write(tmp_path / 'b.jsonl', [row])}")[0]["turns"] == ["a", "b"]
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(json.dumps({"prompt": "a"}))
    found = questions(str(tmp_path / "c.jsonl.gz"))
    assert found.info.dataset_name == "c" and found[0]["turns"] == ["a"]


def test_every_beginning_is_a_sample_of_all_categories(tmp_path):
    rows = [{"turns": [f"{c} {n}"], "category": c} for c, size in (("a", 9), ("b", 3), ("c", 9)) for n in range(size)]
    found = questions(str(write(tmp_path / "rows.jsonl", rows)), 9)
    assert Counter(found["category"]) == {"a": 3, "b": 3, "c": 3}
    assert found["turns"] != [row["turns"] for row in rows][:9]
    assert questions(str(tmp_path / "rows.jsonl"), 9)["turns"] == found["turns"], "the same each time"


def test_masked_rows_are_left_out_and_told(tmp_path):
    rows = [{"turns": [f"{MASKED} USING X"], "category": "a"}, {"turns": ["b"], "category": "b"}]
    found = questions(f"speed-bench={write(tmp_path / 'rows.jsonl', rows)}")
    assert found["turns"] == [["b"]] and "1 of 2 rows are masked" in found.info.description
    with pytest.raises(ValueError, match="1 of 1 rows are masked"):
        questions(f"speed-bench={write(tmp_path / 'rows.jsonl', rows[:1])}")


@pytest.mark.parametrize(
    ("asked", "content", "message"),
    [
        ("mmlu", None, "--suite mmlu is not known: choose from speed-bench, spec-bench, mt-bench, humaneval"),
        ("speed-bench/large", None, "'large' is none of its configurations: qualitative, throughput_1k"),
        ("gsm8k={}", '{"prompt": "a"}\n', "`turns='question'` is no column of the data set, which has prompt"),
        ("mbpp={}", '{"text": "a"}\n', "the template of `turns` fails: 'test_list' is undefined"),
        ("gsm8k={}", '{"question": 3}\n', "row 0 has '3' in place of what a user says"),
        ("gsm8k={}", '{"question": "a"}\n{"question\n', "row 1: line 2 is no JSON"),
        ("{}", None, "rows.jsonl cannot be read: .*no such file"),
        ("humaneval", None, "humaneval cannot be read: 'x' is gated. Visit .* with its rows, --suite humaneval=FILE."),
    ],
)
def test_suites_that_cannot_be_read(asked, content, message, tmp_path, monkeypatch):
    def gated(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("'x' is gated.\nVisit it to ask for access.")

    monkeypatch.setattr(datasets, "load_dataset", gated)
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        questions(asked.format(path))


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_each_turn_comes_after_the_models_own_answers(evaluate, tokenizer, is_chat, size, monkeypatch):
    if is_chat:
        monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    rows = [{"turns": turns} for turns in CHATS]
    found = evaluate(rows, prompt="turns", max_new_tokens=4, batch_size=size)
    assert found.is_complete and found.header["num_rows"] == sum(map(len, CHATS)) and not found.differences
    plain = found.rows(found.settings[0])
    assert len(plain) == found.header["num_rows"]
    # turns of later rows follow those of all rows, in order
    later = iter(range(len(CHATS), len(plain)))
    for number, turns in enumerate(CHATS):
        said = []
        for turn, index in zip(turns, [number, *(next(later) for _ in turns[1:])], strict=True):
            said.append({"role": "user", "content": turn})
            if is_chat:
                rendered = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)
                expected = rendered["input_ids"]
            else:
                expected = tokenizer("\n\n".join(one["content"] for one in said))["input_ids"]
            assert plain[index].prompt == tokenizer.decode(expected, skip_special_tokens=True)
            said.append({"role": "assistant", "content": plain[index].text})
    calls = found.calls[found.settings[0].name]
    assert max(len(call.rows) for call in calls.values()) == size, "conversations of as many turns go together"


def test_a_conversation_that_gets_too_long_keeps_its_first_turns(evaluate):
    rows = [{"turns": ["x", "y " * 60, "z"]}, {"turns": ["x", "y", "z"]}]
    found = evaluate(rows, prompt="turns", max_new_tokens=4, batch_size=2)
    told = [row.message for row in found.bad_rows]
    assert len(told) == 2 and "64 positions" in told[0] and "turn before" in told[1]
    assert found.is_complete and len(found.rows(found.settings[1])) == 4


def test_conversations_are_continued(evaluate, tmp_path, monkeypatch):
    options = {"prompt": "turns", "max_new_tokens": 4, "results": tmp_path / "a.jsonl"}
    rows = [{"turns": turns} for turns in CHATS]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after(patch, 2)  # between two turns
        evaluate(rows, **options)
    begun = kill_after(monkeypatch, 100)
    found = evaluate(rows, **options)
    assert found.is_complete and len(begun) == 2 * found.header["num_rows"] - 2
    assert counts(found) == counts(evaluate(rows, prompt="turns", max_new_tokens=4))


def test_scores_and_training_take_no_conversations(evaluate, model, tokenizer):
    rows = [{"turns": turns, "answer": "x"} for turns in CHATS]
    with pytest.raises(ValueError, match="`score` compares one text of a row, and the data set has conversations"):
        evaluate(rows, prompt="turns", score="exact_match", references="answer")
    with pytest.raises(ValueError, match="no row of `dataset` can be used"):
        read_data(rows, model, tokenizer, prompt="turns")


def test_minutes_make_a_sample_that_goes_on(evaluate, tmp_path):
    options = {"results": tmp_path / "a.jsonl", "minutes": 1e-9}
    assert not evaluate(**options).is_complete and evaluate(results=tmp_path / "a.jsonl").is_complete
    with pytest.raises(ValueError, match="`minutes=0` measures nothing"):
        evaluate(minutes=0)


def test_seconds_of_rows_are_until_their_own_end(evaluate, monkeypatch):
    found = evaluate(["def main():\n", "import os\n"], batch_size=2, max_new_tokens=40)
    ids = found.rows(found.settings[0])[0].new_ids
    end = next(token for token in ids[5:] if ids.index(token) >= 5)
    found = evaluate(["def main():\n", "import os\n"], batch_size=2, max_new_tokens=40, eos_token_id=end)
    for setting in found.settings:
        ((call),) = found.calls[setting.name].values()
        short, long = sorted(call.rows, key=lambda row: len(row.new_ids))
        assert 0 < short.seconds < long.seconds <= call.seconds, setting
        assert len(short.new_ids) < len(long.new_ids)


def test_the_command_makes_the_papers_table(chats, tmp_path):
    files = {name: tmp_path / name for name in ("a.json", "b.json", "a.md", "b.md", "c.md", "c.html")}
    cells = ["--batch", "2", "--temperature", "0,1", "--new-tokens", "8"]
    common = ("--suite", chats, *cells, "--results", tmp_path / "r")
    result = run(*common, "--json", files["a.json"], "--report", files["a.md"], "--by", "Ada", "--minutes", "5")
    assert result.exit_code == 0, result.output
    data = json.loads(files["a.json"].read_text())
    cells = {tuple(cell[key] for key in tables.KEYS): cell for cell in data["cells"]}
    assert [*cells] == [("chats", t, 2, s) for t in (0.0, 1.0) for s in ("plain", "draft, 2 tokens")]
    own, plain = cells["chats", 0.0, 2, "draft, 2 tokens"], cells["chats", 0.0, 2, "plain"]
    assert own["num_identical"] == own["num_compared"] == 9 and own["speedup"] > 0 and plain["speedup"] is None
    found = own["statistics"]
    assert 1 < found["mean_acceptance_length"] <= 3 and len(found["per_position_acceptance_rate"]) == 2
    assert 0 < own["mean_acceptance_length_error"] < 2
    assert 0 < own["user_tokens_per_second"] < own["tokens_per_second"] and own["first_seconds"] > 0
    assert {name: one["num_prompts"] for name, one in own["categories"].items()} == {"even": 7, "odd": 2}
    env = data["environment"]
    assert data["by"] == "Ada" and env["commit"] and env["date"] and env["command"] and not data["is_chat"]
    text = files["a.md"].read_text()
    for word in ("Ada", "without a chat template", "Acceptance by position", "chats: even", "By category"):
        assert word in text and word in re.sub(r"\s+", " ", result.stdout)
    assert f"±{own['mean_acceptance_length_error']:.2f}" in text and len(list((tmp_path / "r").iterdir())) >= 2

    result = run(*common, "--compare", files["a.json"], "--report", files["b.md"])
    assert result.exit_code == 0 and "Side by side" in result.stdout, result.output
    assert "| speedup #1 | speedup #2 |" in files["b.md"].read_text()
    result = run("--compare", files["a.json"], "--compare", files["a.json"], "--report", files["c.md"])
    assert result.exit_code == 0 and "#2: Ada" in files["c.md"].read_text()
    result = run("--compare", files["a.json"], "--json", files["b.json"])
    assert result.exit_code == 2 and "leave `--json` out" in result.stderr
    assert run(*common, "--report", files["c.html"]).exit_code == 0 and "chats" in files["c.html"].read_text()


def test_a_category_of_few_tokens_has_no_figures(chats, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "FEWEST_TOKENS", 20)
    assert run("--suite", chats, "--batch", "2", "--new-tokens", 8, "--json", tmp_path / "a.json").exit_code == 0
    own = json.loads((tmp_path / "a.json").read_text())["cells"][1]["categories"]
    assert own["even"]["speedup"] > 0 and own["even"]["statistics"]["mean_acceptance_length"] > 1
    nothing = dict.fromkeys(("user_tokens_per_second", "speedup")) | {"statistics": {"mean_acceptance_length": None}}
    assert own["odd"] == {"num_prompts": 2} | nothing


def test_what_takes_too_much_memory_is_told_and_the_rest_kept(chats, tmp_path, monkeypatch):
    warm_up = decoder.Decoder.warm_up

    def full(self, setting, prompts):
        if len(prompts) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has ...")
        return warm_up(self, setting, prompts)

    monkeypatch.setattr(decoder.Decoder, "warm_up", full)
    result = run("--suite", chats, "--batch", "2,1", "--json", tmp_path / "a.json")
    assert result.exit_code == 0, result.output
    assert "concurrency 2: out of memory, at an allocation of 2.50 GiB: decode fewer prompts" in result.stderr
    assert {cell["concurrency"] for cell in json.loads((tmp_path / "a.json").read_text())["cells"]} == {1}


def test_prompts_beyond_the_context_are_told_and_the_rest_kept(chats, tmp_path):
    long = write(tmp_path / "long.jsonl", [{"prompt": "word " * 1100}])
    result = run("--suite", long, "--suite", chats, "--num-prompts", 2, "--json", tmp_path / "a.json")
    assert result.exit_code == 0, result.output
    shown = re.sub(r"\s+", " ", result.stderr)
    assert "long, T=0, concurrency 1: no row of `dataset` can be used" in shown and "1024 positions" in shown
    assert {cell["suite"] for cell in json.loads((tmp_path / "a.json").read_text())["cells"]} == {"chats"}
    assert run("--suite", long).exit_code == 1


def test_two_files_of_one_name_are_refused(chats, tmp_path):
    (tmp_path / "other").mkdir()
    result = run("--suite", chats, "--suite", write(tmp_path / "other" / "chats.jsonl", [{"prompt": "a"}]))
    assert result.exit_code == 2 and "two have one name" in result.stderr


def test_one_engine_for_all_ways(chats, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("hf_speculative.generation.attach", lambda model, **options: seen.append(options))
    assert run("--suite", chats, "--num-prompts", 2, "--optimize").exit_code == 0
    assert seen == [{"optimize": True}]


def test_contributed_tables_are_on_the_site():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="contributed.md"))
    text = site_hooks.on_page_markdown("# Contributed tables\n", page)
    paths = site_hooks.contributed()
    assert paths
    for path in paths:
        found = tables.load(path)
        assert found["by"] and found["environment"]["date"] and found["environment"]["commit"].isalnum(), path
        assert f"## {path.stem}" in text and tables.about(found) in text and found["environment"]["command"] in text
