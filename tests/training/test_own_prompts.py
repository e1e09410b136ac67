"""Prompts that a target writes itself: of its chat template's user, or from its beginning token."""

import json

import pytest

import hf_speculative as hs
from hf_speculative.training import answers
from hf_speculative.training.answers import write_prompts
from hf_speculative.training.settings import Settings

TEMPLATE = (
    "{% for message in messages %}def {{ message['role'] }}{{ message['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}def assistant{% endif %}"
)


def num(num_prompts, seed=0):
    return Settings(num_prompts=num_prompts, seed=seed)


def lines(path):
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_without_a_template_beginnings_of_texts_are_prompts(pair, tmp_path):
    told = []
    write_prompts(*pair, tmp_path / "p.jsonl", num(5), watch=lambda done, total: told.append((done, total)))
    found = lines(tmp_path / "p.jsonl")
    assert len(found) == len({*found}) == 5 and all(isinstance(text, str) and len(text) >= 12 for text in found)
    assert told[0] == (0, 5) and told[-1] == (5, 5)
    write_prompts(*pair, tmp_path / "again.jsonl", num(5))
    assert lines(tmp_path / "again.jsonl") == found, "one seed writes the same"
    write_prompts(*pair, tmp_path / "other.jsonl", num(5, seed=1))
    assert lines(tmp_path / "other.jsonl") != found


def test_a_stopped_call_goes_on_where_it_was(pair, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    write_prompts(*pair, whole, num(20))
    write_prompts(*pair, parts, num(20), is_over=lambda: True)
    first = lines(parts)
    assert 2 <= len(first) < 20
    write_prompts(*pair, parts, num(20))
    assert lines(parts) == lines(whole) and lines(parts)[: len(first)] == first


@pytest.mark.parametrize("line", ['{"prompt": [{"role": "user"}]}', '{"text": "x"}', "[]", "x"])
def test_a_file_of_other_prompts_is_refused(line, pair, tmp_path):
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"p.jsonl holds other prompts than the target's own: give them as `data`"):
        write_prompts(*pair, tmp_path / "p.jsonl", num(3))


def test_a_chat_model_writes_turns_of_its_user(pair, tmp_path, monkeypatch):
    target, tokenizer = pair[0], hs.embedded_pair()[2]
    tokenizer.chat_template = TEMPLATE
    asked = []
    real = answers.generate

    def noted(model, ids, **kwargs):
        asked.append(tokenizer.decode(ids[0]))
        return real(model, ids, **kwargs | {"eos_token_id": 0, "min_new_tokens": 6, "max_new_tokens": 30})

    monkeypatch.setattr(answers, "generate", noted)
    monkeypatch.setattr(answers, "_text", lambda row, *_: tokenizer.decode(row).strip())
    write_prompts(target, tokenizer, tmp_path / "p.jsonl", num(3))
    found = lines(tmp_path / "p.jsonl")
    assert asked[0] == "def user" and len(found) == 3
    write_prompts(target, tokenizer, tmp_path / "p.jsonl", num(3))
    assert lines(tmp_path / "p.jsonl") == found


def test_what_cannot_write_prompts_says_so(pair, tmp_path, monkeypatch):
    target, tokenizer = pair[0], hs.embedded_pair()[2]
    monkeypatch.setattr(answers, "_text", lambda *_: None)
    with pytest.raises(ValueError, match=r"writes no prompts that can be used in 128 tries: give `data`"):
        write_prompts(target, tokenizer, tmp_path / "p.jsonl", num(3))
    tokenizer.chat_template = "{{ raise_exception('no users here') }}"
    with pytest.raises(ValueError, match=r"takes no message of a user \(no users here\)\. Give `data`"):
        write_prompts(target, tokenizer, tmp_path / "p.jsonl", num(3))


def test_a_template_that_begins_with_the_users_text(pair, tmp_path):
    target, tokenizer = pair[0], hs.embedded_pair()[2]
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}<|endoftext|>{% endfor %}"
    write_prompts(target, tokenizer, tmp_path / "p.jsonl", num(3))
    assert len(lines(tmp_path / "p.jsonl")) == 3
