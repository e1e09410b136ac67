"""Each row of the table of options: what it refuses, before the first forward, and where it is explained."""

import re
from dataclasses import fields

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.call.option_table import CALL, CONFIG, GENERATION_CONFIG, IN_CALL, OPTIONS, REFUSED, ROWS
from hf_speculative.call.option_types import Drafts, Flag, Grammars, Instance, Name, Probability, Streamer, WholeNumber
from hf_speculative.call.options import read_options
from hf_speculative.call.sources import SOURCES, asked_with
from hf_speculative.schedules import SCHEDULE_NAMES
from hf_speculative.verification import RULES
from tests.support import options_page, tiny

NAN = float("nan")
#: by type: values of other types, and values out of range
WRONG_TYPES = {
    WholeNumber: ["3", True, 2.0, NAN, torch.tensor(3)],
    Probability: ["0.3", True, torch.tensor(0.3)],
    Flag: [1, 0, 0.0],
    Name: [7, True, object],
    Drafts: [7, True, ["suffix", 7]],
    Instance: [7, "adaptive", object()],
    Streamer: [7, print, torch.nn.Linear],
    Grammars: [7, True, object(), [7]],
}
OUT_OF_RANGE = {
    WholeNumber: [0, -1, np.int64(0)],
    Probability: [-0.5, NAN, np.float32(-2)],
    Name: ["nonsense"],
    Drafts: [[]],
    Grammars: [[]],
}
GOOD = {WholeNumber: 16, Probability: 0.3, Flag: True}
BY_NAME = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def good(option):
    """A value that nothing is wrong with but, maybe, its place."""
    if isinstance(option.type, Name) and option.type.names:
        return option.type.names[0]
    objects = {"generator": torch.Generator(), "speculative_config": SpeculativeConfig(num_draft_tokens=3)}
    objects |= {"corpus": ["a text"], "learn": hs.Learner()}
    tokenizers = dict.fromkeys(("tokenizer", "draft_tokenizer"), PreTrainedTokenizerBase())
    return GOOD.get(type(option.type), (objects | tokenizers).get(option.name))


def places(option, value):
    """What makes the keywords of a call that gives the value, for each name and place of the option."""
    for name in (name for name in option.names if name in IN_CALL):
        yield lambda name=name: {name: value}
    if CONFIG in option.places:
        yield lambda: {"speculative_config": SpeculativeConfig(**{option.name: value})}
    if GENERATION_CONFIG in option.places:
        config = GenerationConfig()
        setattr(config, option.names[-1], value)
        yield lambda: {"generation_config": config}


def refused(target, error, words, make, **kwargs):
    """Refused before the first forward, by a message that matches."""
    inputs = tiny.prompts(1) | {"max_new_tokens": 2, "pad_token_id": 0}
    with tiny.refused(target, words, error):
        hs.generate(target, **inputs | kwargs | make())


@BY_NAME
def test_a_value_of_another_type_or_out_of_range(target, draft, option):
    source = {} if option.is_source else {"draft_model": "ngram" if option.name == "max_matching_ngram_size" else draft}
    takes_any_name = isinstance(option.type, Name) and not option.type.names
    wrong = [(value, TypeError) for value in WRONG_TYPES[type(option.type)]]
    wrong += [(value, ValueError) for value in OUT_OF_RANGE.get(type(option.type), ()) if not takes_any_name]
    if isinstance(option.type, Flag):
        wrong.append(("no", ValueError if option.type.word else TypeError))
    if isinstance(option.type, Probability):
        wrong.append((1.5, ValueError))
    for value, error in wrong:
        shown = f"={re.escape(repr(value))}" if isinstance(value, (str, bool, int, float)) else ""
        for make in places(option, value):
            words = rf"`(generation_config\.)?({'|'.join(option.names)}){shown}.*(give|one of)"
            refused(target, error, words, make, **source)


def in_calls(option):
    """As `places`, without the generation_config, which is there for all calls."""
    return [make for make in places(option, good(option)) if "generation_config" not in make()]


def misplaced():
    """Options, and keywords that ask for drafts which they are not about."""
    for option in OPTIONS:
        about = asked_with(option.name)
        for argument in ("draft_model", "prompt_lookup_num_tokens", "assistant_early_exit"):
            if about and argument not in about and option.without_draft == REFUSED:
                yield pytest.param(option, argument, id=f"{option.name}, {argument}")


@pytest.mark.parametrize(("option", "argument"), list(misplaced()))
def test_an_option_about_other_drafts(target, draft, option, argument):
    words = f"`({'|'.join(option.names)}).*has no effect on drafts by .*only on those by `{asked_with(option.name)[0]}`"
    for make in in_calls(option):
        refused(target, ValueError, words, make, **{argument: draft if argument == "draft_model" else 1})


@pytest.mark.parametrize("name", ["num_draft_tokens", "assistant_confidence_threshold"])
def test_a_number_beside_that_of_the_source(target, name):
    for make in in_calls(ROWS[name]):
        words = f"`({'|'.join(ROWS[name].names)})=.* has no effect beside `prompt_lookup_num_tokens`"
        refused(target, ValueError, words, make, prompt_lookup_num_tokens=3)


ABOUT_DRAFTING = [
    one
    for one in OPTIONS
    if one.without_draft == REFUSED and not one.is_source and one.name not in ("schedule", "speculative_config")
]


@pytest.mark.parametrize("option", ABOUT_DRAFTING, ids=lambda option: option.name)
def test_an_option_without_a_draft(target, option):
    for make in in_calls(option):
        refused(target, ValueError, f"`({'|'.join(option.names)})[`=].* has no effect without a draft", make)


@pytest.mark.parametrize("name", ROWS)
def test_a_misspelt_option(target, draft, name):
    slip = f"{name}z"
    if name in IN_CALL:
        words = f"`{slip}` is no option: did you mean `{name}`"
        refused(target, TypeError, words, lambda: {slip: 1}, draft_model=draft)
    else:
        words = rf"`{name}` is a setting: give `speculative_config=.*SpeculativeConfig\({name}="
        refused(target, TypeError, words, lambda: {name: None}, draft_model=draft)


def test_numpys_values_become_pythons(target, draft):
    """JSON, range() and `is True` know no others."""
    given = {
        "num_draft_tokens": np.int64(3),
        "assistant_confidence_threshold": np.float32(0.5),
        "speculative_config": SpeculativeConfig(optimize=np.bool_(True)),
    }
    options = read_options(target, {"draft_model": draft} | given, None, SpeculativeConfig(), lambda draft, _: draft)
    assert type(options.num_draft_tokens) is int and type(options["assistant_confidence_threshold"]) is float
    assert options.config.optimize is True
    options = read_options(target, {"prompt_lookup_num_tokens": np.int32(4)}, None, SpeculativeConfig(), None)
    assert type(options.num_draft_tokens) is int


def test_the_table_names_what_there_is():
    names = {"rule": RULES, "num_assistant_tokens_schedule": SCHEDULE_NAMES}
    assert {name: set(ROWS[name].type.names) for name in names} == {name: set(known) for name, known in names.items()}
    assert {field.name for field in fields(SpeculativeConfig)} == {one.name for one in OPTIONS if CONFIG in one.places}
    assert set(ROWS["draft_model"].type.methods) == {kind.method for kind in SOURCES if "=" in kind.asked_by()}
    assert {kind.argument for kind in SOURCES} == {one.name for one in OPTIONS if one.is_source}
    for kind in SOURCES:
        for field in fields(kind)[1:]:
            if field.name != "in_call" and field.default is not None:
                assert ROWS[field.name].default == str(field.default)
            assert field.name in ROWS or field.name == "in_call"


def test_every_option_is_explained():
    assert options_page.PAGE.read_text() == options_page.render(), "stale: `python -m tests.support.options_page`"
    for option in OPTIONS:
        for thing, place in ((hs.generate, CALL), (SpeculativeConfig, CONFIG)):
            is_told = re.search(rf"    {option.name}\b.*: {re.escape(option.help)}", thing.__doc__) is not None
            assert is_told == (place in option.places)
