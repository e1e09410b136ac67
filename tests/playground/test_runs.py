"""Both texts are what `generate` gives, whatever watches the rounds."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import hf_speculative as hs
from hf_speculative.playground import runs
from hf_speculative.playground.runs import DRAFT_MODEL, Settings, run

PROMPT = "def mean(values):\n"


def plain(models, **kwargs):
    ids = models.tokenizer(PROMPT, return_tensors="pt").input_ids
    torch.manual_seed(kwargs.pop("seed", 0))
    return models.target.generate(ids, max_new_tokens=24, pad_token_id=0, **kwargs)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("method", [DRAFT_MODEL, "auto", "suffix", "recycling", "ngram"])
def test_greedy_texts_are_plain_generate_s(models, decoded, method):
    shown = decoded(PROMPT, max_new_tokens=24, method=method, repetition_penalty=1.1)
    assert shown.plain.ids == shown.own.ids == plain(models, do_sample=False, repetition_penalty=1.1)
    assert shown.is_done and shown.plain.ids == shown.own.ids and shown.statistics.num_new_tokens == 24
    assert "".join(token.text for token in shown.own.tokens) == "".join(token.text for token in shown.plain.tokens)


@pytest.mark.parametrize("judge", ["block", "token", "sampled"])
def test_a_watched_rule_gives_what_the_rule_gives(models, decoded, judge):
    shown = decoded(PROMPT, max_new_tokens=24, temperature=0.8, top_p=0.9, seed=5, judge=judge)
    ids = models.tokenizer(PROMPT, return_tensors="pt").input_ids
    torch.manual_seed(5)
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "pad_token_id": 0, "max_new_tokens": 24}
    how = {"draft_model": models.draft, "num_draft_tokens": 4, "speculative_config": hs.SpeculativeConfig(rule=judge)}
    alone = hs.generate(models.target, ids, **how, **settings)
    assert shown.own.ids == alone[0, ids.shape[1] :].tolist()
    assert shown.plain.ids == plain(models, seed=5, do_sample=True, temperature=0.8, top_p=0.9)


@pytest.mark.parametrize("settings", [{}, {"method": "grammar"}, {"method": "suffix"}, {"temperature": 0.8}])
def test_tokens_that_a_grammar_forces_are_marked(decoded, settings):
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    shown = decoded(PROMPT, max_new_tokens=24, grammar='start: ("call(" /[a-z]/ ") # done; "){9}', **settings)
    assert shown.plain.ids == shown.own.ids or settings.get("temperature")
    tokens, text = shown.own.tokens, ""
    for token in tokens:
        assert token.is_forced == (token.is_from_draft and not text.endswith("call(")), text
        text += token.text
    assert sum(token.is_forced for token in tokens) > len(tokens) / 2
    assert not any(token.is_forced for token in shown.plain.tokens) and len(shown.plain.times) == len(shown.plain.ids)


def test_settings_that_are_none_are_refused_before_anything_runs(models):
    for settings in ({"max_new_tokens": 0}, {"temperature": -1.0}):
        with pytest.raises(ValueError):
            next(run(models, Settings(**settings), PROMPT))
    with pytest.raises(ValueError, match="empty"):
        next(run(models, Settings(), ""))


def test_a_message_goes_through_the_template(models, decoded):
    tokenizer = copy.deepcopy(models.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    shown = decoded("hi", replace(models, tokenizer=tokenizer), as_chat=True, max_new_tokens=6)
    assert shown.own.ids == decoded("[hi]", max_new_tokens=6).own.ids


def test_who_has_had_least_time_is_next(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def steps(letters, cost):
        for letter in letters:
            clock[0] += cost
            yield letter

    found = list(runs.in_turns([steps("abcd", 1.0), steps("AB", 2.5)]))
    assert "".join(step for _, _, step in found) == "aAbcBd"
    assert [seconds for number, seconds, _ in found if number == 1] == [2.5, 5.0]
