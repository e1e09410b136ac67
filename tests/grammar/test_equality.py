"""Texts under a grammar: what plain decoding writes under the same mask, in every way to draft."""

import json
import re
from collections import Counter

import pytest
import torch
from pydantic import BaseModel
from transformers import pipeline

import hf_speculative as hs
from hf_speculative.drafting.draft_model import DraftModel
from hf_speculative.embedded import HEAD
from hf_speculative.grammar.compiled import compiled
from hf_speculative.grammar.processor import GrammarProcessor
from tests.support.cases import slow_but
from tests.support.distributions import assert_samples
from tests.support.grammars import ORDER, PROMPTS, call_of
from tests.support.plain import state_of

pytest.importorskip("llguidance")


class Order(BaseModel):
    customer: int
    country: str
    is_paid: bool


TAGS = {
    "type": "structural_tag",
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": {"type": "object", "maxProperties": 0}, "end": "</f>"}],
}
GRAMMARS = {
    "schema": ORDER,
    "text of a schema": json.dumps(ORDER),
    "pydantic": Order,
    "regex": re.compile(r"[0-9]{3}-[a-z]{4,8}(;|\n)"),
    "lark": 'start: "return " NAME ("." NAME)*\nNAME: /[a-z_]{1,9}/',
    "gbnf": 'root ::= "yes" | "no" [0-9]+',
    "tags": TAGS,
    "llguidance": {"grammars": [{"lark_grammar": 'start: "a" | "bc"'}]},
}


def texts_of(tokenizer, call, rows):
    return tokenizer.batch_decode(rows[:, call["input_ids"].shape[1] :], skip_special_tokens=True)


def expected(model, call, seed=0):
    """By transformers' own steps: the mask is a logits processor there."""
    torch.manual_seed(seed)
    return hs.generate(model, **call, draft_model=None)


def same(model, call, seed=0, plain=None, **drafts):
    plain = expected(model, call, seed) if plain is None else plain
    torch.manual_seed(seed)
    with hs.record() as stats:
        own = {"reproducible": True} if call["do_sample"] else {}
        found = hs.generate(model, **call, **drafts, **own)
    assert found.tolist() == plain.tolist()
    return stats


@pytest.mark.parametrize("sampled", slow_but([False, True], False), ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", slow_but(GRAMMARS, "schema", "regex", "lark"))
def test_each_kind_of_grammar(target, draft, tokenizer, name, sampled):
    plain = expected(target, call := call_of(tokenizer, 2, GRAMMARS[name], sampled))
    for drafts in ({}, {"draft_model": "grammar"}, {"draft_model": draft, "num_draft_tokens": 4}):
        same(target, call, plain=plain, **drafts)
    texts = texts_of(tokenizer, call, plain)
    if name in ("schema", "text of a schema"):
        assert all(json.loads(text)["preferred_contact_method"] for text in texts)
    if name == "regex":
        assert all(GRAMMARS["regex"].fullmatch(text) for text in texts)


def drafts_of(draft):
    tree = hs.SpeculativeConfig(tree_top_k=2, tree_depth=3)
    return {
        "none": {},
        "suffix": {"draft_model": "suffix"},
        "model": {"draft_model": draft},
        "model and texts": {"draft_model": [draft, "auto"]},
        "trees": {"draft_model": draft, "num_draft_tokens": 6, "speculative_config": tree},
        "head": {"draft_model": str(HEAD), "num_draft_tokens": 4},
        "own layers": {"assistant_early_exit": 1},
        "prompt lookup": {"prompt_lookup_num_tokens": 5},
    }


@pytest.mark.parametrize("sampled", slow_but([False, True], True), ids=["greedy", "sampled"])
def test_each_way_to_draft(target, draft, tokenizer, sampled):
    plain = expected(target, call := call_of(tokenizer, 3 if sampled else 1, ORDER, sampled))
    for name, drafts in drafts_of(draft).items():
        assert same(target, call, plain=plain, **drafts).num_accepted_draft_tokens, name


@pytest.mark.parametrize("how, num", [({}, 2), ({"whitespace_flexible": False}, 1), ({"whitespace_pattern": "[ \n]*"}, 4)])
def test_whitespace_of_schemas(target, tokenizer, how, num):
    schema = {"x-guidance": how, "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts, found = ['{"a":1}', '{"a": 1}', '{"a":  1}', '{\n  "a": 1\n}'], []
    for text in texts:
        matcher = compiled(schema, tokenizer, target.config.vocab_size, [tokenizer.eos_token_id]).matcher()
        ids = tokenizer(text).input_ids
        found += [text] if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting() else []
    assert found == texts[:num]


def test_what_is_forced_costs_no_pass(target, tokenizer):
    """The keys are four fifths of the text: each comes with one pass."""
    call = call_of(tokenizer, 1, ORDER)
    stats = same(target, call, draft_model="grammar")
    num_new = expected(target, call).shape[1] - call["input_ids"].shape[1]
    assert num_new > 40 and stats.num_target_forwards < num_new / 3 and stats.draft_acceptance_rate > 0.9
    assert not stats.num_draft_forwards


def test_a_draft_model_takes_no_step_for_what_is_forced(target, draft, tokenizer, monkeypatch):
    call = call_of(tokenizer, 2, ORDER)
    skipping = same(target, call, draft_model=draft, num_draft_tokens=12)
    monkeypatch.setattr(DraftModel, "skips_steps", False)
    stepping = same(target, call, draft_model=draft, num_draft_tokens=12)
    assert 0 < skipping.num_draft_forwards < stepping.num_draft_forwards


def test_guesses_heed_the_grammar(target, tokenizer):
    call = call_of(tokenizer, 1, re.compile(r"x[0-9]{30}"))
    call |= tokenizer("x12345678901234567890\nabc\nx12345678901234567890\nabc\nx", return_tensors="pt")
    assert same(target, call, draft_model="ngram").num_accepted_draft_tokens


def test_a_grammar_for_each_prompt(target, draft, tokenizer):
    grammars = [re.compile("a{3,9}b"), re.compile("c{2,5}"), ORDER]
    call = call_of(tokenizer, 3, grammars)
    same(target, call, draft_model=draft)
    texts = texts_of(tokenizer, call, expected(target, call))
    assert all(grammar.fullmatch(text) for grammar, text in zip(grammars[:2], texts[:2], strict=True))
    assert json.loads(texts[2])
    twice = call | {"num_return_sequences": 2, "do_sample": True}
    same(target, twice, draft_model=draft)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 7, 23])
def test_the_end_of_the_room_in_mid_object(target, draft, tokenizer, max_new_tokens):
    call = call_of(tokenizer, 2, ORDER) | {"max_new_tokens": max_new_tokens}
    for drafts in ({}, {"draft_model": draft, "num_draft_tokens": 5}):
        same(target, call, **drafts)


def test_the_end_of_the_text(target, tokenizer):
    """The end token is forced where nothing else may come, and nothing is asked of the grammar beyond."""
    call = call_of(tokenizer, 2, re.compile("abc")) | {"min_new_tokens": 4}
    same(target, call)  # which the grammar cannot follow
    call = call_of(tokenizer, 2, re.compile("abc")) | {"eos_token_id": [tokenizer.eos_token_id, 40]}
    same(target, call)
    stops = call_of(tokenizer, 2, ORDER) | {"stop_strings": ["method"], "tokenizer": tokenizer}
    same(target, stops)


def test_beside_other_processors(target, draft, tokenizer):
    call = call_of(tokenizer, 3, ORDER, sampled=True) | {"repetition_penalty": 1.3, "top_k": 9}
    same(target, call, draft_model=draft, num_draft_tokens=4)
    same(target, call_of(tokenizer, 1, ORDER) | {"guidance_scale": 1.5}, draft_model=draft, num_draft_tokens=4)


def test_batches_attached_models_and_pipelines(target, draft, tokenizer):
    call = call_of(tokenizer, 3, ORDER)
    plain = texts_of(tokenizer, call, expected(target, call))
    settings = {name: call[name] for name in ("max_new_tokens", "pad_token_id", "do_sample", "grammar")}
    rows = hs.generate_batches(target, PROMPTS[:3], batch_size=2, tokenizer=tokenizer, draft_model=draft, **settings)
    singles = [texts_of(tokenizer, one, expected(target, one))[0] for one in (call_one(tokenizer, i) for i in range(3))]
    assert [row.text for row in rows] == singles
    before = state_of(target)
    hs.attach(target, draft)
    try:
        assert texts_of(tokenizer, call, target.generate(**call)) == plain
        generator = pipeline("text-generation", model=target, tokenizer=tokenizer)
        [found] = generator(PROMPTS[0], return_full_text=False, **settings)
        assert found["generated_text"] == singles[0]
    finally:
        hs.detach(target)
    assert state_of(target) == before


def call_one(tokenizer, index):
    return call_of(tokenizer, 1, ORDER) | tokenizer(PROMPTS[index], return_tensors="pt")


def test_the_distribution_is_the_targets_under_the_mask(target, draft, tokenizer):
    """Fresh randomness: texts of a small grammar as often as plain decoding under the mask writes them."""
    grammar = re.compile("a|b|ab|ba|bb")
    call = call_of(tokenizer, 1, grammar, sampled=True) | {"temperature": 3.0, "top_p": 1.0, "max_new_tokens": 3}
    ids, end = call["input_ids"], tokenizer.eos_token_id

    def chances(text=(), chance=1.0):
        """Of each text, by the target's own scores."""
        row = torch.cat([ids, torch.tensor([text], dtype=torch.long)], 1)
        processor = GrammarProcessor([compiled(grammar, tokenizer, target.config.vocab_size, [end])])
        processor.width = ids.shape[1]
        processor.begin([0])
        with torch.no_grad():
            scores = processor(row, target(row).logits[:, -1].float() / 3.0)
        for token, probability in enumerate(scores.softmax(-1)[0].tolist()):
            if probability:
                new = (*text, token)
                ends = token == end or len(new) == 3
                yield from [(new, chance * probability)] if ends else chances(new, chance * probability)

    many = call | {"num_return_sequences": 400}
    torch.manual_seed(5)
    found = []
    for _ in range(3):
        rows = hs.generate(target, **many, draft_model=draft, num_draft_tokens=2)[:, ids.shape[1] :].tolist()
        found += [tuple(row[: row.index(end) + 1] if end in row else row) for row in rows]
    assert_samples(Counter(found), dict(chances()))
