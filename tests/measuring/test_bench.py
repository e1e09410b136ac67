"""The benchmark and its command: evaluations over built-in prompts, place by place."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import hf_speculative as hs
from hf_speculative.cli import app
from hf_speculative.measuring import bench
from hf_speculative.measuring.render import markdown
from tests.support.evaluations import kill_after


@pytest.fixture
def pair(model, small, tokenizer):
    return bench.Pair(model, {"draft": small}, tokenizer)


def run(*arguments):
    small = ("--new-tokens", "6", "--repeats", "2", "--context", "8", "--draft-tokens", "2", "--methods", "draft")
    return CliRunner().invoke(app, ["bench", *map(str, (*small, *arguments))], env={"COLUMNS": "160"})


def test_all_methods_at_each_place(pair):
    places = bench.sweep([1, 2], [16], [0.0, 1.0])
    found = dict(bench.bench(pair, places, num_draft_tokens=(2,), max_new_tokens=8, repeats=2, progress=False))
    one, two = found.values()
    assert list(found) == ["batch 1, context 16", "batch 2, context 16"] and one.is_complete and two.is_complete
    greedy = ["plain", "assisted, 2 tokens", "draft, 2 tokens", "auto, adaptive length"]
    assert [setting.label for setting in one.settings] == greedy * 2, "greedy, and sampled at the base only"
    assert [setting.label for setting in two.settings] == [*greedy[:1], *greedy[2:]], "assisted takes one row only"
    for evaluation in found.values():
        assert evaluation.header["dataset"]["name"] == "built-in text" and not evaluation.differences
        for setting in evaluation.settings:
            assert {len(row.new_ids) for row in evaluation.rows(setting).values()} == {8}
            assert evaluation.totals(setting).num_identical in (None, evaluation.header["batch_size"])


def test_end_tokens_do_not_end_a_text_early():
    target, draft, tokenizer = hs.embedded_pair()
    target.generation_config.eos_token_id = list(range(2000))
    options = {"methods": ["draft"], "num_draft_tokens": (2,), "max_new_tokens": 8, "repeats": 1, "progress": False}
    ((_, evaluation),) = bench.bench(bench.Pair(target, {"draft": draft}, tokenizer), [bench.Place(2, 10)], **options)
    assert {len(row.new_ids) for row in evaluation.rows(evaluation.settings[1]).values()} == {8}


def test_prompts_are_of_the_length_asked_for(tokenizer):
    one, other = bench.prompts(tokenizer, 2, 50)
    assert len(one) == len(other) == 50 and one != other and bench.prompts(tokenizer, 2, 50) == [one, other]
    assert len(bench.prompts(tokenizer, 1, 10**6)[0]) == 10**6, "longer than the text"


def test_a_sweep_varies_one_list_at_a_time():
    places = bench.sweep([1, 4], [64, 128], [0.0, 0.7])
    assert [(p.batch_size, p.context, len(p.temperatures)) for p in places] == [(1, 64, 2), (4, 64, 1), (1, 128, 1)]
    assert len(bench.sweep([1, 4], [64, 128], grid=True)) == 4
    with pytest.raises(ValueError, match="`context` is empty"):
        bench.sweep(context=[])
    with pytest.raises(ValueError, match="`batch_size=0`"):
        bench.sweep(batch_size=[0])


def test_the_command(tmp_path):
    paths = {name: tmp_path / name for name in ("a.json", "a.html", "a.md")}
    result = run("--batch", "1,2", "--json", paths["a.json"], "--report", paths["a.html"], "--glossary")
    assert result.exit_code == 0, result.output
    for word in ("tokens/s", "quartiles", "decoding", "identical", "batch 2, context 8, Greedy decoding"):
        assert word in result.stdout
    data = json.loads(paths["a.json"].read_text())
    assert list(data) == ["batch 1, context 8", "batch 2, context 8"]
    own = data["batch 2, context 8"]["totals"][1]
    assert own["num_identical"] == 2 and own["decoding"]["num_pairs"] == 2 and own["first_seconds"] > 0
    text = paths["a.html"].read_text(encoding="utf-8")
    assert "Speedup by place" in text and not re.search(r"""(src|href)=["']http""", text)
    assert run("--report", paths["a.md"]).exit_code == 0
    assert re.search(r"\| setting \| tokens/s \| speedup .*\n\| --- ", paths["a.md"].read_text())


def test_a_stopped_benchmark_keeps_what_was_measured(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, 6)  # in the second place's second repeat
        result = run("--batch", "1,2", "--json", tmp_path / "a.json", "--results", tmp_path / "results")
    assert result.exit_code == 130 and "what was measured so far" in result.stderr, result.output
    one, two = json.loads((tmp_path / "a.json").read_text()).values()
    assert one["is_complete"] and not two["is_complete"] and two["totals"][0]["num_new_tokens"] == 12
    begun = kill_after(monkeypatch, 100)
    assert run("--batch", "1,2", "--results", tmp_path / "results").exit_code == 0 and len(begun) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "one"], "--batch one: give a number"),
        (["--model", "some/model"], "--model and --draft-model go together"),
        (["--dtype", "int4"], "`--dtype int4`: choose one of"),
        (["--methods", "fast"], "'fast' is not known: choose from assisted"),
        (["--draft-tokens", "0"], "`--draft-tokens 0` drafts nothing"),
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
    found = dict(bench.bench(pair, bench.sweep([1, 8]), ("assisted", "draft", "optimized", "auto")))
    print(markdown.text(found))
    for evaluation in found.values():
        assert not evaluation.failures and not evaluation.differences
        for totals in map(evaluation.totals, evaluation.settings):
            assert totals.tokens_per_second and totals.peak_bytes, totals.setting
