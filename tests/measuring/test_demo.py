"""The demo: what it shows is true, and on a terminal it is there piece by piece."""

import itertools
import re

import pytest

from hf_speculative import embedded_pair
from hf_speculative.measuring.commands import demo
from hf_speculative.measuring.comparison import Texts
from hf_speculative.measuring.settings import NamedDraft
from tests.support.command import run_command


@pytest.fixture(autouse=True)
def without_real_weights(monkeypatch):
    """Real ones are for `make test-real`."""

    def missing():
        raise ValueError("neither the Hub nor its package")

    monkeypatch.setattr(demo, "example_pair", missing)


def show(num_tokens, repeats):
    command = ["generate", "--demo", "--max-new-tokens", num_tokens, "--repeats", repeats]
    result = run_command(*command, columns=100)
    assert result.exit_code == 0, result.output
    return result


def test_the_command_shows_it():
    result = show("6", "2")
    for title, *_ in demo.SCENES:
        assert title in result.output
    assert result.output.count("plain, 6 passes") == 3
    assert "SmolLM2 is not here: neither the Hub" in result.output
    text = re.sub(r"\s+", " ", result.output)
    assert re.search(r"\d+ passes of the target instead of 18; the same texts", text) and "Your own models" in text


@pytest.mark.real
def test_a_chat_model_answers(monkeypatch):
    from hf_speculative.embedded import example_pair

    try:
        example_pair()
    except ValueError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(demo, "example_pair", example_pair)
    result = show("24", "1")
    assert result.output.count("plain, ") == 3 and "the same texts" in re.sub(r"\s+", " ", result.output)
    assert "def " in result.output and "<|im_end|>" not in result.output


@pytest.mark.parametrize("scene", demo.SCENES, ids=lambda scene: scene[0].split(",")[0])
def test_both_texts_are_the_same_and_come_in_time(scene):
    target, draft, tokenizer = embedded_pair()
    *_, code, setting = scene
    texts = Texts(target, {"draft": NamedDraft(draft)}, tokenizer, setting, max_new_tokens=24)
    plain, ours = texts.timelines(code)
    assert "".join(piece.text for piece in plain) == "".join(piece.text for piece in ours)
    assert len(plain) == 24 and any(piece.is_from_draft for piece in ours) and not any(p.is_from_draft for p in plain)
    for pieces in (plain, ours):
        assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(pieces))
