"""The benchmark and its command: evaluations over built-in prompts, place by place."""

import inspect
import json
import os
import re

import pytest
import torch

import hf_speculative as hs
from hf_speculative.distillation.teacher import Example
from hf_speculative.measuring import bench
from hf_speculative.measuring.render import suites as suite_tables
from hf_speculative.measuring.results import FEWEST_TOKENS
from hf_speculative.training.warm_tables import learn_tables
from tests.support.command import run_command
from tests.support.evaluations import kill_after


@pytest.fixture
def pair(model, small, tokenizer):
    return bench.Pair(model, {"draft": small}, tokenizer)


def run(*arguments):
    small = ("--new-tokens", "6", "--repeats", "2", "--context", "8", "--draft-tokens", "2", "--methods", "draft")
    return run_command("bench", *small, *arguments, columns=160)


@pytest.fixture
def measured(pair):
    def call(batch_sizes, temperatures, methods=bench.DEFAULT_METHODS):
        suites = bench.code(pair.tokenizer, ["code/16"], max(batch_sizes))
        places = bench.places_of(suites, batch_sizes, temperatures)
        options = {"num_draft_tokens": (2,), "max_new_tokens": 8, "repeats": 2, "progress": False}
        return {str(place): one for place, one in bench.bench(pair, suites, places, methods, **options)}

    return call


def test_all_methods_at_each_place(measured):
    found = measured([1, 2], [0.0, 1.0])
    assert list(found) == [f"code/16, T={t}, concurrency {c}" for t in (0, 1) for c in (1, 2)]
    defaults = inspect.signature(bench.bench).parameters
    assert defaults["max_new_tokens"].default * defaults["repeats"].default >= FEWEST_TOKENS
    labels = ["plain", "assisted, 2 tokens", "draft, 2 tokens", "auto, adaptive length"]
    for evaluation in found.values():
        size = evaluation.header["batch_size"]
        expected = labels if size == 1 else [labels[0], *labels[2:]]
        assert [setting.label for setting in evaluation.settings] == expected, "assisted takes one row only"
        assert evaluation.is_complete and not evaluation.differences
        assert len(evaluation.rows(evaluation.settings[0])) == size
        for setting in evaluation.settings:
            assert {len(row.new_ids) for row in evaluation.rows(setting).values()} == {8}
            assert evaluation.totals(setting).num_identical in (None, size)


def test_end_tokens_do_not_end_a_text_early(pair, measured, monkeypatch):
    monkeypatch.setattr(pair.target.generation_config, "eos_token_id", list(range(2000)))
    (evaluation,) = measured([2], [0.0], ["draft"]).values()
    assert {len(row.new_ids) for row in evaluation.rows(evaluation.settings[1]).values()} == {8}


def test_prompts_are_of_the_length_asked_for(tokenizer):
    one, other = bench.prompts(tokenizer, 2, 50)
    assert len(one) == len(other) == 50 and one != other and bench.prompts(tokenizer, 2, 50) == [one, other]
    assert len(bench.prompts(tokenizer, 1, 10**6)[0]) == 10**6, "longer than the text"


def test_the_command(tmp_path):
    paths = {name: tmp_path / name for name in ("a.json", "a.html")}
    result = run("--batch", "1,2", "--json", paths["a.json"], "--report", paths["a.html"], "--glossary")
    assert result.exit_code == 0, result.output
    for word in ("tokens/s", "quartiles", "decoding", "identical", "code/8, T=0, concurrency 2, Greedy decoding: take"):
        assert word in result.stdout or word.replace(": take", ": ") in result.stdout
    cells = json.loads(paths["a.json"].read_text())["cells"]
    assert [(cell["concurrency"], cell["setting"]) for cell in cells[::2]] == [(1, "plain"), (2, "plain")]
    assert cells[3]["num_identical"] == 2 and cells[3]["decoding"]["num_pairs"] == 2 and cells[3]["first_seconds"] > 0
    text = paths["a.html"].read_text(encoding="utf-8")
    assert "concurrency 2, Greedy decoding" in text and not re.search(r"""(src|href)=["']http""", text)


def test_tables_and_several_sources(model, small, tokenizer, tmp_path):
    """No models of assisted generation, which is left out."""
    tables = tmp_path / "tables"
    learn_tables(model, tokenizer, [Example((5, 6), (7, 8, 9))]).save(tables)
    for part, name in ((model, "target"), (tokenizer, "target"), (small, "small"), (tokenizer, "small")):
        part.save_pretrained(tmp_path / name)
    for draft in (tables, f"{tmp_path / 'small'}+suffix"):
        path = tmp_path / "a.json"
        call = ("--model", tmp_path / "target", "--draft-model", draft, "--methods", "assisted,draft", "--json", path)
        result = run(*call)
        assert result.exit_code == 0, result.output
        assert [cell["setting"] for cell in json.loads(path.read_text())["cells"]] == ["plain", "draft, 2 tokens"]
        assert "no draft model" not in result.stdout


def test_a_stopped_benchmark_keeps_what_was_measured(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, 6)  # in the second place's second repeat
        result = run("--batch", "1,2", "--json", tmp_path / "a.json", "--results", tmp_path / "results")
    assert result.exit_code == 130 and "what was measured so far" in result.stderr, result.output
    assert "code/8, T=0, concurrency 2: Unfinished" in result.stdout
    cells = json.loads((tmp_path / "a.json").read_text())["cells"]
    assert [cell["num_new_tokens"] for cell in cells if cell["setting"] == "plain"] == [12, 12]
    begun = kill_after(monkeypatch, 100)
    assert run("--batch", "1,2", "--results", tmp_path / "results").exit_code == 0 and len(begun) == 2


def test_files_of_another_run_are_not_shown_as_this_one(tmp_path, monkeypatch):
    """A stopped benchmark shows what it measured itself."""
    results = tmp_path / "results"
    assert run("--batch", "1,2", "--results", results).exit_code == 0
    for path in results.iterdir():
        os.utime(path, (1, 1))
    (results / "code-8-t0-c1.jsonl").unlink()
    kill_after(monkeypatch, 3)
    result = run("--batch", "1,2", "--results", results, "--json", tmp_path / "a.json")
    assert result.exit_code == 130 and "concurrency 2" not in result.stdout, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "one"], "--batch one: give a number"),
        (["--model", "some/model"], "`--model` and `--draft-model` go together"),
        (["--dtype", "int4"], "`--dtype int4`: choose one of"),
        (["--batch", "0"], "`batch_size=0`: give a number of 1 or more"),
        (["--repeats", "1"], "--repeats 1 has no spread"),
        (["--suite", "gsm8k"], "--context has no effect beside --suite"),
        (["--num-prompts", "3"], "--num-prompts has no effect without --suite"),
        (["--compare", "nowhere.json"], "nowhere.json is no run of suites"),
        (["--methods", "fast"], "'fast' is not known: choose from assisted"),
        (["--draft-tokens", "0"], "`--draft-tokens 0` drafts nothing"),
        (["--draft-model", "mine+suffix"], "`--model` and `--draft-model` go together"),
        (["--minutes", "0"], "`--minutes 0.0`: give more than 0"),
    ],
)
def test_errors_are_messages(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2 and message in re.sub(r"\s+", " ", result.stderr) and "Traceback" not in result.output


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    """Equality, speed and memory at once: eager, captured and compiled. `pytest -s` shows the table."""
    target, draft, tokenizer = hs.embedded_pair()
    pair = bench.Pair(target.cuda(), {"draft": draft.cuda()}, tokenizer)
    suites = bench.code(tokenizer, ["code/64"], 8)
    places = bench.places_of(suites, [1, 8], [0.0])
    found = dict(bench.bench(pair, suites, places, ("assisted", "draft", "optimized", "auto")))
    print(suite_tables.text([suite_tables.as_run(found)]))
    for evaluation in found.values():
        assert not evaluation.failures and not evaluation.differences
        for totals in map(evaluation.totals, evaluation.settings):
            assert totals.tokens_per_second and totals.peak_bytes, totals.setting
