"""The demo: what it shows is true, and on a terminal it is there piece by piece."""

import io
import itertools
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hf_speculative import embedded_pair
from hf_speculative.cli import app
from hf_speculative.measuring.commands import demo
from hf_speculative.measuring.comparison import Comparison
from hf_speculative.measuring.speedup import Speedup
from tests.support import site, tiny

PAIR = embedded_pair()


@pytest.fixture(autouse=True)
def without_real_weights(monkeypatch):
    """Real ones are for `make test-real`."""

    def missing():
        raise ValueError("neither the Hub nor its package")

    monkeypatch.setattr(demo, "example_pair", missing)


def test_the_command_shows_it(monkeypatch):
    result = CliRunner().invoke(
        app, ["generate", "--demo", "--max-new-tokens", "6", "--repeats", "2"], env={"COLUMNS": "100"}
    )
    assert result.exit_code == 0, result.output
    for scene in demo.CODE:
        assert scene.title in result.output
    assert result.output.count("plain, 6 passes") == 3
    assert "SmolLM2 is not here: neither the Hub" in result.output
    text = re.sub(r"\s+", " ", result.output)
    assert re.search(r"\d+ passes of the target instead of 18; the same texts", text) and "Your own models" in text


@pytest.mark.real
def test_a_chat_model_answers(monkeypatch):
    from hf_speculative.embedded.examples import example_pair

    try:
        example_pair()
    except ValueError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(demo, "example_pair", example_pair)
    result = CliRunner().invoke(
        app, ["generate", "--demo", "--max-new-tokens", "24", "--repeats", "1"], env={"COLUMNS": "100"}
    )
    assert result.exit_code == 0, result.output
    assert result.output.count("plain, ") == 3 and "the same texts" in re.sub(r"\s+", " ", result.output)
    assert "def " in result.output and "<|im_end|>" not in result.output


def test_options_without_effect_are_refused():
    result = CliRunner().invoke(app, ["generate", "x", "--demo", "--temperature", "1"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "--temperature, --prompt beside --demo" in re.sub(r"\s+", " ", result.stderr)


@pytest.mark.parametrize("scene", demo.CODE, ids=lambda scene: scene.title.split(",")[0])
def test_both_texts_are_the_same_and_come_in_time(scene):
    run = Comparison(*PAIR, None, scene.setting, seed=scene.seed, max_new_tokens=24, **scene.kwargs)
    plain, ours = run.timelines(scene.prompt)
    assert "".join(piece.text for piece in plain) == "".join(piece.text for piece in ours)
    assert len(plain) == 24 and any(piece.is_from_draft for piece in ours) and not any(p.is_from_draft for p in plain)
    for pieces in (plain, ours):
        assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(pieces))


def test_on_a_terminal_it_is_played(monkeypatch):
    shown, now = [], itertools.count(step=0.5)
    monkeypatch.setattr(demo, "_both", lambda line, plain, ours, passes: shown.append((len(plain), len(ours))) or "")
    monkeypatch.setattr(demo.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(demo.time, "sleep", lambda seconds: None)
    plain, ours = (
        [demo.Piece(seconds, "x", False) for seconds in times] for times in ((0.2, 0.4, 0.6), (0.1, 0.2, 0.3))
    )
    demo._play(Console(file=io.StringIO(), force_terminal=True), "a\nb", plain, ours, (3, 3))
    assert shown[0] == (0, 0) and shown[-1] == (3, 3) and any(few < many for few, many in shown), "ours is ahead"
    assert shown == sorted(shown)


def test_the_sentence():
    gain = Speedup(1.52, 1.38, 1.61, 15)
    assert demo.sentence(61, 192, True, gain) == (
        "61 passes of the target instead of 192; the same texts; 1.5x (1.4 to 1.6) on this machine."
    )
    assert "please report it" in demo.sentence(3, 3, False, gain)


def test_the_recording_is_of_this_demo():
    """As it is in the README: made by this script, of these texts; no font is fetched."""
    text = (site.ROOT / "docs" / "assets" / "demo.svg").read_text(encoding="utf-8")
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text).replace("&#160;", " "))
    for scene in demo.CHAT:
        assert scene.title in shown, "stale: `make recording`"
    assert "the same texts" in shown and "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_demo_runs_with_the_threads_that_are_fastest(monkeypatch):
    """On a machine of four cores, three of which others use."""
    chosen, seconds = [4], {1: 0.2, 2: 0.5, 4: 0.9}
    monkeypatch.setattr(demo.torch, "get_num_threads", lambda: chosen[0])
    monkeypatch.setattr(demo.torch, "set_num_threads", lambda num: chosen.__setitem__(0, num))
    monkeypatch.setattr(demo, "timed", lambda call, device: (None, seconds[chosen[0]]))
    demo.choose_threads(tiny.llama())
    assert chosen == [1]
    seconds[4] = 0.1
    chosen[0] = 4
    demo.choose_threads(tiny.llama())
    assert chosen == [4]
