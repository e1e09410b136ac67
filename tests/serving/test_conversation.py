"""Talking to a model: the text and the command's lines."""

import copy
import sys
from io import StringIO

import pytest
from rich.console import Console

from hf_speculative.serving.chat import talk
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


def conversation(pair, tokenizer, seed=None, **options):
    target, draft = pair
    options = {"draft_model": draft, "num_draft_tokens": 3, "max_new_tokens": 9} | options
    return Conversation(target, tokenizer, options, seed)


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
    talk = Conversation(pair[0], tokenizer, {"draft_model": "auto", "max_new_tokens": 9}, system="be")
    said = "".join(piece for piece, _ in talk.reply("hi"))
    assert said == text_of(pair, tokenizer, "s:be;u:hi;")
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "be"}]


def test_sampled_under_a_seed(pair, tokenizer):
    talk = conversation(pair, tokenizer, seed=4, do_sample=True, temperature=0.9)
    first = "".join(piece for piece, _ in talk.reply("hello"))
    talk.clear()
    assert "".join(piece for piece, _ in talk.reply("hello")) == first


def test_a_reply_that_is_ended_is_kept_and_one_that_fails_is_not(pair, tokenizer):
    talk = conversation(pair, tokenizer)
    pieces = talk.reply("hello")
    next(pieces)
    pieces.close()
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    talk.options["num_draft_tokens"] = 0
    with pytest.raises(ValueError, match="num_draft_tokens"):
        list(talk.reply("more"))
    assert len(talk.messages) == 2


def test_lines(pair, tokenizer, monkeypatch):
    monkeypatch.setattr(sys, "stdin", StringIO("hello\n\n/nonsense\n/clear\nhello\n/exit\nmore"))
    out, conversed = StringIO(), conversation(pair, tokenizer)
    talk(Console(file=out, width=200), conversed, True)
    assert out.getvalue().count(text_of(pair, tokenizer, "hello").strip()) == 2 and "/clear begins" in out.getvalue()
    assert [message["role"] for message in conversed.messages] == ["user", "assistant"]
