"""Processors of other engines, as their users pass them: they draft in batches, and texts are those of plain decoding."""

import copy
import itertools
import json
import warnings

import pytest
import torch
from transformers import LogitsProcessor

import hf_speculative as hs
from tests.support.cases import slow_but
from tests.support.grammars import ORDER, call_of

llguidance = pytest.importorskip("llguidance")
from llguidance import numpy as bits  # noqa: E402
from llguidance.hf import from_tokenizer  # noqa: E402


class AsDocumented(LogitsProcessor):
    """As llguidance's documentation has it: matchers are made in the first call, one a row."""

    def __init__(self, tokenizer, size, grammar):
        self.tokenizer, self.grammar = from_tokenizer(tokenizer, n_vocab=size), grammar
        self.matchers = None

    def __call__(self, ids, scores):
        if self.matchers is None:
            self.matchers = [llguidance.LLMatcher(self.tokenizer, self.grammar) for _ in ids]
            self.mask = bits.allocate_token_bitmask(*scores.shape)
        else:
            for row, matcher in enumerate(self.matchers):
                if not matcher.is_stopped():
                    assert matcher.consume_token(int(ids[row, -1])), "a token that was forbidden"
        for row, matcher in enumerate(self.matchers):
            bits.fill_next_token_bitmask(matcher, self.mask, row)
            bits.apply_token_bitmask_inplace(scores[row : row + 1].numpy(), self.mask[row : row + 1])
        return scores


class WithLock(AsDocumented):
    """From its first call on it holds what cannot be copied."""

    def __call__(self, ids, scores):
        self.stream = (n for n in range(3))
        return super().__call__(ids, scores)


def processor_of(kind, target, tokenizer):
    if kind == "xgrammar":
        xgrammar = pytest.importorskip("xgrammar")
        from xgrammar.contrib.hf import LogitsProcessor as Processor

        known = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=target.config.vocab_size)
        return Processor(xgrammar.GrammarCompiler(known).compile_json_schema(json.dumps(ORDER)))
    grammar = llguidance.LLMatcher.grammar_from_json_schema(ORDER)
    if kind.startswith("outlines"):
        pytest.importorskip("outlines.backends.llguidance")
        from outlines.backends.llguidance import LLGuidanceLogitsProcessor

        known = from_tokenizer(tokenizer, n_vocab=target.config.vocab_size)
        return LLGuidanceLogitsProcessor(grammar, known, "torch")
    made = {"llguidance": AsDocumented, "lazily uncopyable": WithLock}[kind]
    return made(tokenizer, target.config.vocab_size, grammar)


def both(pair, kind, num_prompts, sampled=False, **drafts):
    """What plain decoding and ours write, with a processor each."""
    target, draft, tokenizer = pair
    call = call_of(tokenizer, num_prompts, sampled=sampled) | {"max_new_tokens": 60}
    torch.manual_seed(3)
    plain = target.generate(**call, logits_processor=[processor_of(kind, target, tokenizer)])
    torch.manual_seed(3)
    own = {"reproducible": True} if sampled else {}
    drafts = drafts or {"draft_model": draft, "num_draft_tokens": 5}
    with hs.record() as stats:
        found = hs.generate(target, **call, logits_processor=[processor_of(kind, target, tokenizer)], **drafts, **own)
    assert found.tolist() == plain.tolist()
    return stats


#: engines, and whether texts are sampled
CASES = list(itertools.product(["llguidance", "outlines", "xgrammar"], [False, True]))
QUICK = [("llguidance", False)]


@pytest.mark.parametrize("num_prompts", slow_but([1, 3], 3))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", slow_but(CASES, *QUICK), ids=str)
def test_engines(pair, case, num_prompts):
    kind, sampled = case
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert both(pair, kind, num_prompts, sampled).mean_acceptance_length > 2.5
        if sampled:  # guesses what is forbidden
            both(pair, kind, num_prompts, sampled, draft_model="auto", num_draft_tokens=6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.compiler.set_stance("force_eager")  # its kernel compiles itself
@pytest.mark.parametrize("num_prompts", slow_but([1, 3], 3))
def test_outlines_core(target, draft, tokenizer, num_prompts):
    outlines_core = pytest.importorskip("outlines_core")
    from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor

    ids = {bytes([65 + i]).decode(): [tokenizer(chr(65 + i)).input_ids[0]] for i in range(26)}
    index = outlines_core.Index("[A-Z]{9}", outlines_core.Vocabulary(tokenizer.eos_token_id, ids))
    call = call_of(tokenizer, num_prompts)
    plain = target.generate(**call, logits_processor=[OutlinesCoreLogitsProcessor(index, "torch")])
    with pytest.warns(UserWarning, match="nothing is drafted .*`grammar=` drafts"):
        processors = [OutlinesCoreLogitsProcessor(index, "torch")]
        assert hs.generate(target, **call, logits_processor=processors, draft_model=draft).tolist() == plain.tolist()


@pytest.mark.parametrize("num_prompts", slow_but([1, 3], 3))
def test_what_cannot_be_copied_once_it_was_called(pair, num_prompts):
    """One warning with the way out, and plain decoding; never an exception in mid-call."""
    with pytest.warns(UserWarning, match=r"nothing is drafted .*WithLock holds .*`clone\(\)`") as told:
        stats = both(pair, "lazily uncopyable", num_prompts)
    assert len(told) == 1 and not stats.num_draft_tokens


def test_a_generator_that_plain_decoding_cannot_read(pair):
    target, draft, tokenizer = pair
    processor = processor_of("llguidance", target, tokenizer)
    processor.stream = (n for n in range(3))
    call = call_of(tokenizer, 3, sampled=True) | {"logits_processor": [processor]}
    config = hs.SpeculativeConfig(generator=torch.Generator())
    with pytest.raises((TypeError, ValueError), match="AsDocumented holds"):
        hs.generate(target, **call, draft_model=draft, speculative_config=config)
    attached = hs.attach(copy.copy(target), draft, config=config)
    with pytest.warns(UserWarning, match="nothing is drafted"):  # greedy, to which a generator means nothing
        attached.generate(**call_of(tokenizer, 3), logits_processor=[processor])


@pytest.mark.parametrize("drafts", [{"num_draft_tokens": 4}, {"draft_model": "auto", "num_draft_tokens": 8}], ids=str)
def test_a_function_of_the_prefix(target, draft, tokenizer, drafts):
    """It is asked, not copied; and never about what it has forbidden."""
    calls = []

    def allowed(row, ids):
        calls.append(row)
        assert int(ids[-1]) < 300 or len(ids) <= width, "a token that was forbidden"
        return [token for token in range(20, 300) if (token + row + len(ids)) % 3]

    call = call_of(tokenizer, 3) | {"max_new_tokens": 20, "prefix_allowed_tokens_fn": allowed}
    width = call["input_ids"].shape[1]
    plain = target.generate(**call)
    calls.clear()
    assert hs.generate(target, **call, **{"draft_model": draft} | drafts).tolist() == plain.tolist()
    assert {*calls} == {0, 1, 2}


def test_a_grammar_for_each_row_of_a_processor(target, draft, tokenizer):
    """Such a processor is shown all rows together, as plain decoding shows them, and nothing is drafted."""
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.contrib.hf import LogitsProcessor as Processor

    known = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=target.config.vocab_size)
    compiler = xgrammar.GrammarCompiler(known)
    grammars = [compiler.compile_regex(pattern) for pattern in ("a[0-9]{9}", "b[c-f]{9}")]
    call = call_of(tokenizer, 2)
    plain = target.generate(**call, logits_processor=[Processor(grammars)])
    with pytest.warns(UserWarning, match="holds a grammar for each row: give the list as `grammar=`"):
        found = hs.generate(target, **call, logits_processor=[Processor(grammars)], draft_model=draft)
    assert found.tolist() == plain.tolist()


@pytest.mark.parametrize("kind", ["function", "processor", "rollback"])
def test_nothing_is_asked_beyond_an_end(target, draft, tokenizer, kind):
    """A draft may go on behind an end token, where plain decoding never asks."""
    call = call_of(tokenizer, 1) | {"max_new_tokens": 24}
    width = call["input_ids"].shape[1]
    end = int(target.generate(**call)[0, width + 3])

    def checked(ids):
        assert end not in ids[width:].tolist(), "beyond the end"

    class Checks(LogitsProcessor):
        def __init__(self):
            self.num_calls = 0

        def __call__(self, ids, scores):
            checked(ids[0])
            self.num_calls += 1
            return scores

    class TakesBack(Checks):
        def rollback(self, num_calls):
            self.num_calls -= num_calls

    def allowed(row, ids):
        checked(ids)
        return list(range(target.config.vocab_size))

    def settings():
        if kind == "function":
            return {"prefix_allowed_tokens_fn": allowed}
        return {"logits_processor": [Checks() if kind == "processor" else TakesBack()]}

    plain = target.generate(**call, eos_token_id=end, **settings())
    for drafts in ({"draft_model": draft}, {"assistant_early_exit": 1}, {"draft_model": "auto"}):
        found = hs.generate(target, **call, eos_token_id=end, **settings(), **drafts, num_draft_tokens=9)
        assert found.tolist() == plain.tolist()


def test_a_function_of_the_prefix_beside_a_memory(target, tokenizer):
    """Neither is shown what the other, or itself, has forbidden: guesses are not masked, and the last token tells."""

    class Remembers(LogitsProcessor):
        num_calls = 0

        def __call__(self, ids, scores):
            assert not self.num_calls or int(ids[0, -1]) % 2 == 0, "a token that was forbidden"
            self.num_calls += 1
            return scores

    def allowed(row, ids):
        assert len(ids) <= width or int(ids[-1]) % 2 == 0, "a token that was forbidden"
        return list(range(20, 4000, 2))

    call = call_of(tokenizer, 1) | {"max_new_tokens": 30, "prefix_allowed_tokens_fn": allowed}
    text = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\nw = ["
    call |= tokenizer(text, return_tensors="pt")
    width = call["input_ids"].shape[1]
    plain = target.generate(**call, logits_processor=[Remembers()])
    for draft in ("ngram", "auto"):
        with hs.record() as stats:
            found = hs.generate(target, **call, logits_processor=[Remembers()], draft_model=draft, num_draft_tokens=9)
        assert found.tolist() == plain.tolist() and stats.num_draft_tokens
