"""Grammars compiled for a tokenizer by llguidance, which masks without a table and takes tokens back.

llguidance may be missing: this is imported where a call has a grammar.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, StructTag, grammar_from
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

#: the tag of structural tags, as xgrammar and vLLM write them
STRUCTURAL_TAG = "structural_tag"
#: states of the parser after a token: room for schemas of thousands of properties; the engine's other limits bound time and
#: memory as they are
LIMITS = LLParserLimits(max_items_in_row=20_000)
#: between the tokens of JSON, where the schema says nothing else: without a bound, models write spaces without an end
WHITESPACE = " ?"
_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, dict[tuple, Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """A grammar for the tokens of one model.

    Attributes:
        text: as llguidance takes it.
        eos: tokens that end a text.
        vocab_size: width of the model's logits.
    """

    text: str
    tokenizer: LLTokenizer
    eos: tuple[int, ...]
    vocab_size: int

    def matcher(self) -> LLMatcher:
        """One that has read nothing."""
        return LLMatcher(self.tokenizer, self.text, limits=LIMITS)


def compiled(value: Any, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: Sequence[int]) -> Grammar:
    """Compile a `grammar`, as `hf_speculative.generate` takes it.

    Raises:
        ValueError: it is no grammar, needs what the engine lacks, allows no text; the tokenizer does not fit.
    """
    try:
        text = _text(value)
    except RecursionError as error:
        raise ValueError("`grammar` is nested too deeply.") from error
    except (TypeError, AttributeError, UnicodeError, AssertionError) as error:
        raise ValueError(f"`grammar` cannot be read: {error}") from error
    own = _tokenizer(tokenizer, vocab_size, tuple(eos))
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(text, own, limits=LIMITS)
    if is_wrong:
        raise ValueError(f"`grammar` cannot be compiled: {messages[0].strip()}")
    grammar = Grammar(text, own, tuple(eos), vocab_size)
    matcher = grammar.matcher()
    allowed = matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(f"`grammar` cannot be compiled: {matcher.get_error().splitlines()[0]}")
    if not any(allowed):
        raise ValueError("`grammar` allows no text at all: no token may come first.")
    return grammar


def _text(value: Any) -> str:
    if hasattr(value, "model_json_schema"):  # a pydantic model
        value = value.model_json_schema()
    if isinstance(value, re.Pattern):
        if not isinstance(value.pattern, str):
            raise ValueError(f"`grammar={value!r}` is a pattern of bytes: give one of text.")
        if value.flags & ~re.UNICODE:
            raise ValueError(f"`grammar={value!r}` has flags: write them into the pattern, as in (?i).")
        return LLMatcher.grammar_from_regex(value.pattern)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"`grammar` begins like JSON and is none: {error}.") from error
    if isinstance(value, dict) and value.get("type") == STRUCTURAL_TAG:
        return _of_tags(value)
    if isinstance(value, dict) and "grammars" in value:
        return json.dumps(value)
    if isinstance(value, dict):
        says_which = any(name.startswith("whitespace") for name in value.get("x-guidance") or ())
        return LLMatcher.grammar_from_json_schema(value, defaults=None if says_which else {"whitespace_pattern": WHITESPACE})
    try:
        return grammar_from("grammar", value)
    except ValueError as error:
        raise ValueError(f"`grammar={value[:80]!r}` is no grammar: {error}") from error


def _of_tags(value: dict[str, Any]) -> str:
    """Free text in which a trigger begins one of some structures."""
    tags = []
    if not isinstance(value.get("triggers", []), list) or not value.get("structures", True):
        raise ValueError(f"`grammar`: a {STRUCTURAL_TAG} has a list of triggers, and at least one structure.")
    try:
        for one in value["structures"]:
            begins = (trigger for trigger in value["triggers"] if one["begin"].startswith(trigger))
            if (trigger := next(begins, None)) is None:
                raise ValueError(f"`grammar`: {one['begin']!r} begins with none of the triggers.")
            tags.append(StructTag(trigger=trigger, begin=one["begin"], grammar=one["schema"], end=one["end"]))
    except KeyError as error:
        has = "triggers, and structures with begin, schema and end"
        raise ValueError(f"`grammar`: a {STRUCTURAL_TAG} has {has}; {error} is missing.") from error
    return StructTag.to_grammar(tags, assume_special=False)


def _tokenizer(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]) -> LLTokenizer:
    """Read once, which takes a quarter of a second for 50,000 tokens."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"`grammar` needs a fast tokenizer, and {type(tokenizer).__name__} is none.")
    if len(tokenizer) > vocab_size:
        sizes = f"the tokenizer has {len(tokenizer)} tokens and the model {vocab_size}"
        raise ValueError(f"`grammar`: {sizes}: pass the model's own as `tokenizer=`.")
    if not eos or not all(0 <= token < vocab_size for token in eos):
        raise ValueError(f"`eos_token_id={list(eos)}` names none of the model's tokens, and a grammar ends with one.")
    known, key = _tokenizers.setdefault(tokenizer, {}), (vocab_size, eos, len(tokenizer))
    if key not in known:
        known[key] = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos))
    return known[key]
