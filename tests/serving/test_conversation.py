"""Talking to a model: the text and the command's lines."""

import copy
import json
import sys
from io import StringIO

import pytest
from rich.console import Console

from hf_speculative.serving.chat import Talk
from hf_speculative.serving.conversation import Conversation
from tests.support import tiny, tongues
from tests.support.served import alone


@pytest.fixture(scope="module")
def pair():
    target = tiny.llama(vocab_size=300)
    return target, tiny.noisy_copy(target)


@pytest.fixture
def tokenizer():
    return copy.deepcopy(tongues.byte_level(300))


def conversation(pair, tokenizer, **settings):
    target, draft = pair
    return Conversation(
        target, tokenizer, {"draft_model": draft, "num_draft_tokens": 3}, {"max_new_tokens": 9} | settings
    )


def text_of(pair, tokenizer, prompt, **settings):
    return tokenizer.decode(alone(pair[0], tokenizer(prompt)["input_ids"], max_new_tokens=9, **settings))


def test_a_base_model_goes_on_with_the_text(pair, tokenizer):
    talk = conversation(pair, tokenizer)
    pieces = list(talk.reply("hello"))
    said = "".join(piece for piece, _ in pieces)
    assert said == text_of(pair, tokenizer, "hello")
    assert any(is_from_draft for _, is_from_draft in pieces) and not all(is_from_draft for _, is_from_draft in pieces)
    again = "".join(piece for piece, _ in talk.reply(" and"))
    assert again == text_of(pair, tokenizer, "hello" + said + " and")
    assert talk.statistics.num_new_tokens == 9 and "9 tokens" in talk.status and "draft tokens accepted" in talk.status


def test_a_template_and_a_system_message(pair, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
    talk = Conversation(pair[0], tokenizer, {"draft_model": "auto"}, {"max_new_tokens": 9}, system="be")
    said = "".join(piece for piece, _ in talk.reply("hi"))
    assert said == text_of(pair, tokenizer, "s:be;u:hi;")
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "be"}]


def test_sampled_under_a_seed(pair, tokenizer):
    talk = conversation(pair, tokenizer, temperature=0.9, seed=4)
    first = "".join(piece for piece, _ in talk.reply("hello"))
    talk.clear()
    assert "".join(piece for piece, _ in talk.reply("hello")) == first


def test_a_reply_that_is_ended_is_kept_and_one_that_fails_is_not(pair, tokenizer):
    talk = conversation(pair, tokenizer)
    pieces = talk.reply("hello")
    next(pieces)
    pieces.close()
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    talk.set("temperature", "-1")
    with pytest.raises(ValueError, match="temperature"):
        list(talk.reply("more"))
    assert len(talk.messages) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [("/set size 3", "no setting 'size'"), ("/set top_k many", "number"), ("/set max_new_tokens 0", "no reply")],
)
def test_settings_that_are_none(line, words, pair, tokenizer):
    talk = Talk(Console(file=StringIO()), conversation(pair, tokenizer), False)
    with pytest.raises(ValueError, match=words):
        talk.obey(line)


def test_lines(pair, tokenizer, monkeypatch, tmp_path):
    lines = ["hello", "/set max_new_tokens 3", "/settings", "", "/nonsense"]
    lines += [f"/save {tmp_path / 'c.json'}", "/clear", "/help"]
    monkeypatch.setattr(sys, "stdin", StringIO("\n".join(lines)))
    out = StringIO()
    talk = conversation(pair, tokenizer)
    Talk(Console(file=out, width=200), talk, True).run()
    assert text_of(pair, tokenizer, "hello").strip() in out.getvalue()
    assert "max_new_tokens 3" in out.getvalue() and "no such command" in out.getvalue() and "/save" in out.getvalue()
    assert json.loads((tmp_path / "c.json").read_text())[0] == {"role": "user", "content": "hello"}
    assert talk.messages == []
