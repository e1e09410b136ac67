"""Grammars that cannot be used: refused before the first forward, with what is wrong and the way out."""

import re
import sys
import time

import pytest
import torch

import hf_speculative as hs
from tests.support import tiny
from tests.support.grammars import ORDER, call_of

pytest.importorskip("llguidance")


TAG = {"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<g>", "schema": {}, "end": "</g>"}]}
DEEP: dict = {"type": "string"}
for _ in range(2000):
    DEEP = {"type": "array", "items": DEEP}
BAD = {
    "an invalid schema": ({"type": "objectx"}, "cannot be compiled: Invalid type: objectx"),
    "a feature that is not there": ({"not": {}}, r"cannot be compiled: Unimplemented keys: \[\"not\"\]"),
    "look-ahead": (re.compile("^(?=a)a"), "look-ahead"),
    "flags": (re.compile("a", re.IGNORECASE), r"has flags: write them into the pattern"),
    "bytes": (re.compile(b"a"), "is a pattern of bytes"),
    "an unknown rule": ("start: foo", "unknown name"),
    "half a JSON": ("{bad", "begins like JSON and is none"),
    "nothing allowed": ({"type": "string", "minLength": 5, "maxLength": 3}, "Unsatisfiable"),
    "no such file": ("nowhere.json", "='nowhere.json'` cannot be read"),
    "a tag without its trigger": (TAG, "begins with none of the triggers"),
    "half a tag": ({"type": "structural_tag", "triggers": ["<f"]}, "'structures' is missing"),
    "a bomb": (re.compile(".{0,20}" * 200), "cannot be compiled: lexer precomputation failed"),
    "surrogates": (re.compile("\ud800"), "cannot be read"),
    "numbers for options": ({"x-guidance": 5}, "cannot be read"),
    "no structures": ({"type": "structural_tag", "triggers": ["<f"], "structures": []}, "at least one structure"),
    "nested": (DEEP, "recursion limit|nested too deeply"),
    "too many": ([ORDER, ORDER, ORDER], "lists 3 grammars for 1 prompts"),
}


@pytest.mark.parametrize("draft_model", [None, "auto"], ids=str)
@pytest.mark.parametrize("name", BAD)
def test_bad_grammars(target, tokenizer, name, draft_model):
    value, words = BAD[name]
    with tiny.refused(target, f"(?s)`grammar.*{words}"):
        hs.generate(target, **call_of(tokenizer, 1, value), draft_model=draft_model)


@pytest.mark.parametrize("pattern", ["((a{1,1000}){1,1000}){1,1000}", "(.*a.{400}b)"])
def test_bombs(target, tokenizer, pattern):
    """The engine's limits hold: such a grammar takes no longer than another."""
    begun = time.monotonic()
    hs.generate(target, **call_of(tokenizer, 1, re.compile(pattern)) | {"max_new_tokens": 10})
    assert time.monotonic() - begun < 20


def test_without_a_grammar_or_its_tokenizer(target, tokenizer):
    call = call_of(tokenizer, 1)
    with pytest.raises(ValueError, match=r"`draft_model='grammar'` drafts what a grammar forces: give `grammar=`"):
        hs.generate(target, **call, draft_model="grammar")
    target, inputs = tiny.llama(), tiny.prompts(1) | {"grammar": ORDER, "max_new_tokens": 3}
    with pytest.raises(ValueError, match="`grammar` needs the text: pass the model's `tokenizer=`"):
        hs.generate(target, **inputs)
    with pytest.raises(ValueError, match=r"the tokenizer has 4096 tokens and the model \d+: pass the model's own"):
        hs.generate(target, **inputs, tokenizer=tokenizer)


def test_a_file(target, tokenizer, tmp_path):
    file = tmp_path / "yes.lark"
    file.write_text('start: "yes" | "no"')
    for value in (file, str(file)):
        call = call_of(tokenizer, 1, value)
        ids = hs.generate(target, **call)
        assert tokenizer.decode(ids[0, call["input_ids"].shape[1] :], skip_special_tokens=True) in ("yes", "no")


def test_without_the_engine(target, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, "hf_speculative.grammar.compiled", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'hf_speculative\[grammar\]'"):
        hs.generate(target, **call_of(tokenizer, 1, ORDER))


def test_masks():
    import numpy as np

    from hf_speculative.grammar.processor import Mask

    generator = np.random.default_rng(0)
    for share in (0.0, 0.01, 0.5, 0.99, 1.0):
        allowed = generator.random(100) < share
        mask = Mask(np.packbits(np.pad(allowed, (0, 28)), bitorder="little").view(np.int32), 100)
        scores = torch.randn(100)
        expected = scores.masked_fill(~torch.from_numpy(allowed), -torch.inf)
        mask.apply(scores)
        assert torch.equal(scores, expected) and [mask.allows(token) for token in range(100)] == allowed.tolist()


#: more alternatives at one place than the engine follows
WIDE = {"anyOf": [{"type": "object", "properties": {f"{i}": {"const": i}}, "required": [f"{i}"]} for i in range(30000)]}


def test_a_grammar_beyond_the_engines_limits(target, draft, tokenizer):
    """It is told, be it on the way; no text ends in the middle in silence."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": WIDE}, "required": ["a", "b"]}
    for drafts in ({"draft_model": None}, {"draft_model": draft, "num_draft_tokens": 5}, {"draft_model": "grammar"}):
        with pytest.raises(ValueError, match=r"`grammar` (takes more than the engine's limits|cannot be compiled)"):
            hs.generate(target, **call_of(tokenizer, 2, schema), **drafts)


def test_lists_of_grammars(target, tokenizer):
    with pytest.raises(ValueError, match="`grammar` lists several, and prompts are read"):
        hs.generate_batches(target, ["a", "b"], tokenizer=tokenizer, grammar=[ORDER, ORDER], max_new_tokens=2)
    call = call_of(tokenizer, 2, [ORDER, ORDER, ORDER])
    embeds = target.get_input_embeddings()(call.pop("input_ids")).detach()
    with pytest.raises(ValueError, match="`grammar` lists 3 grammars for 2 rows"):
        hs.generate(target, **call, inputs_embeds=embeds, draft_model="grammar")
