"""The command generate, run as people run it."""

import io
import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hf_speculative import embedded_pair
from hf_speculative.cli import app
from hf_speculative.embedded import DEMO_PROMPTS
from hf_speculative.measuring import Setting, calls, decoder
from hf_speculative.measuring.commands import prompts
from hf_speculative.measuring.comparison import Comparison
from tests.architectures.check import build
from tests.support import tongues
from tests.support.files import write_prompts


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*args, stdin=""):
        return CliRunner().invoke(app, ["generate", "--max-new-tokens", "12", *map(str, args)], input=stdin)

    return invoke


def test_a_prompt_side_by_side(run):
    result = run("def f(x):", "--num-draft-tokens", 4)
    assert result.exit_code == 0, result.output
    for word in ("plain", "draft, 4 tokens", "speedup", "quartiles", "decoding", "length", "1 of 1", "--glossary"):
        assert word in result.output
    assert "def f(x):" in result.output
    assert "draft, adaptive length" in run("def f(x):", "--glossary", "--repeats", 1).output


def test_standard_input(run):
    assert "import os" in run("--repeats", 1, stdin="import os").output


def test_where_prompts_come_from_is_never_guessed(run, monkeypatch):
    for args in ((), ("--prompts", ""), ("",), ("x", "")):
        result = run(*args)
        assert result.exit_code == 2 and not result.stdout, args
    assert "standard input is empty" in run().stderr and "prompt 2 is empty" in run("x", "").stderr
    assert "--demo" in run("").stderr, "the way out"
    assert "two sources" in run("x", "--prompts", "p.txt").stderr

    class Terminal:
        def isatty(self):
            return True

    console = Console(file=io.StringIO())
    monkeypatch.setattr("sys.stdin", Terminal())
    assert tuple(prompts.prompt_source(None, None, "prompt", console)()) == DEMO_PROMPTS
    assert "No prompt was given" in console.file.getvalue()
    monkeypatch.setattr("sys.stdin", None)  # closed, as under some schedulers
    with pytest.raises(ValueError, match="standard input is empty"):
        prompts.prompt_source(None, None, "prompt", console)


def test_sampling_is_not_called_identical_unless_it_is_reproducible(run):
    sampled = ("def f(x):", "--temperature", 0.8, "--repeats", 1)
    assert "identical" not in run(*sampled).output and "1 of 1" in run(*sampled, "--reproducible").output


def test_text_is_streamed_a_round_at_a_time():
    setting, pair = Setting(draft_model="draft", num_draft_tokens=3), embedded_pair()
    one, passes = Comparison(*pair, None, setting, max_new_tokens=12), []
    pair[0].register_forward_pre_hook(lambda *_: passes.append(1))
    stream = one.stream(DEMO_PROMPTS[0])
    pieces = [next(stream)]
    assert len(passes) == 1, "the first token is there before the second pass"
    pieces += stream
    num_passes = len(passes)
    (row,) = one.compare([DEMO_PROMPTS[0]])
    assert pieces == row["pieces"] and row["json"]["identical"]
    assert sum(from_draft for _, from_draft in pieces) == 12 - num_passes
    stream = one.stream(DEMO_PROMPTS[0])
    next(stream)
    stream.close()  # as Ctrl-C does
    assert one.compare([DEMO_PROMPTS[0]])[0]["json"]["identical"]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_streamed_text_is_the_compared_one_for_each_prompt(seed):
    setting = Setting(draft_model="draft", num_draft_tokens=3, temperature=1.0, reproducible=True)
    one = Comparison(*embedded_pair(), None, setting, num_prompts=2, repeats=2, seed=seed, max_new_tokens=8)
    for prompt in DEMO_PROMPTS[:2]:
        streamed = list(one.stream(prompt))
        (row,) = one.compare([prompt])
        assert row["pieces"] == streamed and row["json"]["identical"]


@pytest.mark.slow
def test_both_ways_are_timed_in_turn(run, tmp_path, monkeypatch):
    order, decode = [], decoder.Decoder.decode

    def noted(self, setting, *args):
        order.append("plain" if setting.is_plain else "speculative")
        return decode(self, setting, *args)

    monkeypatch.setattr(decoder.Decoder, "decode", noted)
    total = json.loads(run("x = 1", "--json", "--repeats", 4).stdout.splitlines()[-1])["total"]
    there, back = ["plain", "speculative"], ["speculative", "plain"]
    assert order == 2 * (there + back), "each way as often first"
    assert total["decoding"]["num_pairs"] == 4 and total["num_prompts"] == 1
    for num_prompts, repeats in ((1, 3), (2, 2), (3, 1), (5, 1)):
        order.clear()
        run("--prompts", write_prompts(tmp_path / "p.txt", [f"x = {i}" for i in range(num_prompts)]))
        assert order.count("plain") == num_prompts * repeats, "a file is not decoded again and again"


@pytest.fixture
def clock(monkeypatch):
    """Speculative calls take a third of plain ones' time, whatever they do."""
    seconds = iter([9.0, 3.0, 1.0, 1.0, 3.0, 3.0, 1.0])  # plain decoding's warm-up, then the order changes
    monkeypatch.setattr(calls, "timed", lambda call, device: (call(), next(seconds)))


@pytest.mark.parametrize("args", [("--num-draft-tokens", 4), ()])
def test_where_nothing_was_drafted_there_is_no_speedup_and_no_nan(run, clock, args):
    shown = run("x = 1", "--max-new-tokens", 1, *args).output
    assert "nothing was drafted" in shown and "nan" not in shown and "accepted" not in shown
    assert "noise" in shown and "3.00x" not in shown
    assert "3.00 times plain's tokens per second by the clock, where its target passes allow 1.00" in shown


def test_totals_as_json_have_no_nan(run, clock):
    def refuse(constant):
        raise AssertionError(constant)

    lines = run("x = 1", "--max-new-tokens", 1, "--num-draft-tokens", 4, "--json").stdout.splitlines()
    total = [json.loads(line, parse_constant=refuse) for line in lines][-1]["total"]
    assert total["is_noise"] and total["speedup"] is None and total["plain"]["num_new_tokens"] == 3


def test_a_model_whose_text_has_no_prompt_in_front_is_refused():
    t5, tokenizer = build("seq2seq", "t5"), embedded_pair()[2]
    with pytest.raises(ValueError, match="takes decoder-only models"):
        Comparison(t5, t5, tokenizer, None, Setting(draft_model="draft", num_draft_tokens=3))


def test_a_draft_with_another_tokenizer(run, tmp_path):
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    for name, parts in (("target", (target, tokenizer)), ("draft", (tongues.moved(draft, tokenizer, other), other))):
        for part in parts:
            part.save_pretrained(tmp_path / name)
    options = ("--model", tmp_path / "target", "--draft-model", tmp_path / "draft", "--num-draft-tokens", 3)
    row, total = map(json.loads, run("import os", *options, "--repeats", 1, "--json").stdout.splitlines())
    assert row["identical"] and total["total"]["statistics"]["num_accepted_draft_tokens"] > 0


def test_a_model_alone_drafts_for_itself(run, tmp_path):
    target, _, tokenizer = embedded_pair()
    for part in (target, tokenizer):
        part.save_pretrained(tmp_path)
    options = ("--model", tmp_path, "--num-draft-tokens", 4, "--max-new-tokens", 48, "--repeats", 1, "--json")
    row, total = map(json.loads, run("def f(x):", *options).stdout.splitlines())
    assert row["identical"] and total["total"]["statistics"]["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_a_file_with_broken_lines(run, tmp_path, name):
    lines = ['{"text": "import os"}', "{broken", "", '{"other": 1}', '{"text": 7}', '{"text": "def f():"}']
    result = run("--prompts", write_prompts(tmp_path / name, lines), "--field", "text", "--json", "--batch-size", 2)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row.get("prompt") for row in rows] == ["import os", "def f():", None]
    total = rows[-1]["total"]
    assert total["num_prompts"] == total["num_identical"] == 2 and total["decoding"]["num_pairs"] == 3
    assert total["statistics"]["num_new_tokens"] == 3 * sum(row["statistics"]["num_new_tokens"] for row in rows[:2])
    for number, reason in ((1, "Expecting"), (2, "no 'text'"), (3, "7 is neither a text")):
        assert re.search(rf"row {number}: .*{reason}", result.stderr), result.stderr


def test_a_text_file(run, tmp_path):
    result = run(
        "--prompts", write_prompts(tmp_path / "p.txt", ["import os", "", "def f():"]), "--no-show-text", "--repeats", 1
    )
    assert "2 of 2" in result.output and "import os" not in result.output


def test_results_so_far_are_not_lost(run, tmp_path, monkeypatch):
    original, begun = Comparison.compare, []

    def interrupted(*args, **kwargs):
        begun.append(1)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(Comparison, "compare", interrupted)
    lines = [f"x = {i}" for i in range(5)]
    result = run("--prompts", write_prompts(tmp_path / "p.txt", lines), "--json", "--repeats", 1)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 130, "a script goes on after 0"
    assert len(rows) == 3 and rows[-1]["total"]["num_prompts"] == 2 and "stopped after 2 of 5" in result.stderr


def test_a_prompt_that_fails_is_reported_and_skipped(run, tmp_path, monkeypatch):
    original = Comparison.compare

    def fails_on_b(self, prompts, *args, **kwargs):
        if prompts == ["b"]:
            raise RuntimeError("too long")
        return original(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Comparison, "compare", fails_on_b)
    result = run("--prompts", write_prompts(tmp_path / "p.txt", ["a", "b", "c"]), "--repeats", 1)
    assert "2 of 2" in result.output and "'b' on: too long" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x", "--dtype", "int4"), "`--dtype int4`: choose one of"),
        (("x", "--top-k", 5), "give a --temperature above 0"),
        (("x", "--rule", "blok"), "`--rule blok` is not one of token, block, sampled: did you mean 'block'"),
        (("x", "--draft-model", "some/model"), "--model and --draft-model go together"),
        (("--prompts", "nowhere.txt"), "there is no such file"),
        (("x", "--prompts", "nowhere.txt"), "two sources"),
    ],
)
def test_errors_are_messages(run, args, message):
    result = run(*args)
    assert result.exit_code == 2 and message in re.sub(r"\s+", " ", result.stderr) and "Traceback" not in result.output


def test_a_file_of_another_kind_and_an_empty_one(run, tmp_path):
    assert (
        "a file that ends in one of .txt, .jsonl" in run("--prompts", write_prompts(tmp_path / "p.bin", ["a"])).stderr
    )
    broken = run("--prompts", write_prompts(tmp_path / "p.jsonl", ["", "{", "[", ""])).stderr
    assert re.search(
        r"no row of \S+p\.jsonl can be used; row 0: line 2 is no JSON: Expecting", re.sub(r"\s+", " ", broken)
    )
