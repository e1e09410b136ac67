"""The command generate, run as people run it."""

import functools
import json
import re

import pytest

from hf_speculative import embedded_pair
from hf_speculative.command.prompts import BEGINNINGS
from hf_speculative.measuring import Setting, calls
from hf_speculative.measuring.commands import prompts
from hf_speculative.measuring.comparison import Texts
from hf_speculative.measuring.settings import NamedDraft
from tests.architectures.check import build
from tests.support import tongues
from tests.support.command import run_command
from tests.support.evaluations import kill_after, watch_calls


@pytest.fixture
def run():
    return functools.partial(run_command, "generate", "--max-new-tokens", "12", columns=160)


def test_a_prompt_side_by_side(run):
    result = run("def f(x):", "--num-draft-tokens", 4)
    assert result.exit_code == 0, result.output
    for word in ("plain", "draft, 4 tokens", "speedup", "quartiles", "decoding", "length", "1 of 1", "--glossary"):
        assert word in result.output
    assert "def f(x):" in result.output
    assert "draft, adaptive length" in run("def f(x):", "--glossary", "--repeats", 1).output


def test_where_prompts_come_from_is_never_guessed(run, monkeypatch):
    for args in ((), ("",), ("x", "")):
        result = run(*args)
        assert result.exit_code == 2 and not result.stdout, args
    assert "standard input is empty" in run().stderr and "prompt 2 is empty" in run("x", "").stderr
    assert "--demo" in run("").stderr, "the way out"

    assert "import os" in run("--repeats", 1, stdin="import os").output

    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    assert prompts.given_prompts(None) == []
    monkeypatch.setattr("sys.stdin", None)  # closed, as under some schedulers
    with pytest.raises(ValueError, match="standard input is empty"):
        prompts.given_prompts(None)


def test_sampling_is_not_called_identical_unless_it_is_reproducible(run):
    sampled = ("def f(x):", "--temperature", 0.8, "--repeats", 1)
    assert "identical" not in run(*sampled).output and "1 of 1" in run(*sampled, "--reproducible").output


def texts_of(target, draft, tokenizer):
    setting = Setting(draft_model="draft", num_draft_tokens=3)
    return Texts(target, {"draft": NamedDraft(draft)}, tokenizer, setting, max_new_tokens=12)


def test_text_is_streamed_a_round_at_a_time():
    target, draft, tokenizer = embedded_pair()
    one, passes = texts_of(target, draft, tokenizer), []
    target.register_forward_pre_hook(lambda *_: passes.append(1))
    stream = one.stream(BEGINNINGS[0])
    pieces = [next(stream)]
    assert len(passes) == 1, "the first token is there before the second pass"
    pieces += stream
    assert sum(from_draft for _, from_draft in pieces) == 12 - len(passes)
    next(interrupted := one.stream(BEGINNINGS[0]))
    interrupted.close()  # as Ctrl-C does
    assert list(one.stream(BEGINNINGS[0])) == pieces
    ids = tokenizer(BEGINNINGS[0], return_tensors="pt")
    expected = target.generate(**ids, max_new_tokens=12, do_sample=False)[0]
    assert BEGINNINGS[0] + "".join(text for text, _ in pieces) == tokenizer.decode(expected)


@pytest.mark.slow
def test_both_ways_are_timed_in_turn(run, monkeypatch):
    order = []
    watch_calls(monkeypatch, lambda setting, *_: order.append("plain" if setting.is_plain else "speculative"))
    total = json.loads(run("x = 1", "--json", "--repeats", 4).stdout.splitlines()[-1])["total"]
    there, back = ["plain", "speculative"], ["speculative", "plain"]
    assert order == 2 * (there + back), "each way as often first"
    assert total["decoding"]["num_pairs"] == 4 and total["num_prompts"] == 1
    for num_prompts, repeats in ((1, 3), (2, 2), (3, 1), (5, 1)):
        order.clear()
        run(*(f"x = {i}" for i in range(num_prompts)))
        assert order.count("plain") == num_prompts * repeats, "many prompts are not decoded again and again"


@pytest.fixture
def clock(monkeypatch):
    """Speculative calls take a third of plain ones' time, whatever they do."""
    seconds = iter([9.0, 3.0, 1.0, 1.0, 3.0, 3.0, 1.0])  # plain decoding's warm-up, then the order changes
    monkeypatch.setattr(calls, "timed", lambda call, device: (call(), next(seconds)))


def test_where_nothing_was_drafted_there_is_no_nan(run, clock):
    shown = run("x = 1", "--max-new-tokens", 1, "--num-draft-tokens", 4).output
    assert "nothing was drafted" in shown and "nan" not in shown and "accepted" not in shown


def test_totals_as_json_have_no_nan(run, clock):
    lines = run("x = 1", "--max-new-tokens", 1, "--num-draft-tokens", 4, "--json").stdout.splitlines()
    total = json.loads(lines[-1], parse_constant=pytest.fail)["total"]
    assert total["speedup"] == 3 and total["plain"]["num_new_tokens"] == 3


def test_a_model_whose_text_has_no_prompt_in_front_is_refused():
    t5, tokenizer = build("seq2seq", "t5"), embedded_pair()[2]
    with pytest.raises(ValueError, match="give a decoder-only model"):
        texts_of(t5, t5, tokenizer)


def test_a_draft_with_another_tokenizer(run, tmp_path):
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    for name, parts in (("target", (target, tokenizer)), ("draft", (tongues.moved(draft, tokenizer, other), other))):
        for part in parts:
            part.save_pretrained(tmp_path / name)
    options = ("--model", tmp_path / "target", "--draft-model", tmp_path / "draft", "--num-draft-tokens", 3)
    row, total = map(json.loads, run("import os", *options, "--repeats", 1, "--json").stdout.splitlines())
    assert row["identical"] and total["total"]["statistics"]["num_accepted_draft_tokens"] > 0


def test_several_prompts_in_a_batch(run):
    result = run("import os", "def f():", "--json", "--batch-size", 2)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row.get("prompt") for row in rows] == ["import os", "def f():", None]
    total = rows[-1]["total"]
    assert total["num_prompts"] == total["num_identical"] == 2 and total["decoding"]["num_pairs"] == 3
    assert total["statistics"]["num_new_tokens"] == 3 * sum(row["statistics"]["num_new_tokens"] for row in rows[:2])
    result = run("import os", "def f():", "--no-show-text")
    assert "2 of 2" in result.output and "import os" not in result.output


def test_results_so_far_are_not_lost(run, monkeypatch):
    kill_after(monkeypatch, 4)  # in the third prompt
    result = run(*(f"x = {i}" for i in range(5)), "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 130, "a script goes on after 0"
    assert len(rows) == 3 and rows[-1]["total"]["num_prompts"] == 2 and "stopped after 2 of 5" in result.stderr


def test_a_prompt_that_fails_is_reported_and_skipped(run, monkeypatch):
    def fail_on_one(setting, batch, indices):
        if indices == [1]:
            raise RuntimeError("too long")

    watch_calls(monkeypatch, fail_on_one)
    result = run("a", "b", "c")
    assert "2 of 2" in result.output and re.search(r"row 1: .*, greedy: RuntimeError: too long", result.output)
    assert re.search(r"skipped 'b': .*, greedy: RuntimeError: too long", run("a", "b", "c", "--json").stderr)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x", "--top-k", 5), "give a --temperature above 0"),
        (("x", "--rule", "blok"), "`--rule blok` is not one of token, block, sampled: did you mean 'block'"),
        (("x", "--demo", "--temperature", 1), "--temperature, --prompt beside --demo"),
    ],
)
def test_errors_are_messages(run, args, message):
    result = run(*args)
    assert result.exit_code == 2 and message in re.sub(r"\s+", " ", result.stderr) and "Traceback" not in result.output
