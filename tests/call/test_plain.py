"""Plain calls of an attached model: on its compiled passes, with the tokens and the side effects of plain `generate`."""

import pytest
import torch
from transformers import GenerationConfig, TextIteratorStreamer

import hf_speculative as hs
from tests.support import tiny
from tests.support.execution import run_as

GREEDY = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 12}
SAMPLED = GREEDY | {"do_sample": True, "temperature": 0.9, "top_p": 0.95}


@pytest.fixture
def attached(emulated, monkeypatch):
    run_as(monkeypatch, compile=True)
    return hs.attach(tiny.llama())


def plain(**call):
    return tiny.llama().generate(**call)


CALLS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "an end token": GREEDY | {"eos_token_id": [5, 9, 17]},
    "several of a prompt": SAMPLED | {"num_return_sequences": 2},
    "processors": SAMPLED | {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "a generation_config": {"generation_config": GenerationConfig(**GREEDY)},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_tokens_and_generator_are_those_of_plain_decoding(name, num_rows, attached, emulated):
    call = tiny.prompts(num_rows, width=9) | CALLS[name]
    model = tiny.llama()
    torch.manual_seed(7)
    expected, state = model.generate(**call), torch.get_rng_state()
    torch.manual_seed(7)
    with hs.record() as statistics:
        found = attached.generate(**call, draft_model=None)
    assert found.tolist() == expected.tolist() and torch.equal(torch.get_rng_state(), state)
    assert emulated.runs and statistics.num_calls == 0, "it is plain decoding"


OTHERS = {
    "beams": GREEDY | {"num_beams": 3},
    "scores": GREEDY | {"return_dict_in_generate": True, "output_scores": True},
    "no cache": GREEDY | {"use_cache": False},
    "positions": GREEDY | {"position_ids": torch.arange(9)[None]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_are_transformers_own(name, attached, emulated):
    call = tiny.prompts(1, width=9) | OTHERS[name]
    found, expected = attached.generate(**call, draft_model=None), plain(**call)
    assert not emulated.runs
    if name == "scores":
        assert type(found) is type(expected) and len(found.scores) == len(expected.scores)
        found, expected = found.sequences, expected.sequences
    assert found.tolist() == expected.tolist()


class Uncopied:
    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def __call__(self, input_ids, scores):
        return scores


def test_a_processor_that_cannot_be_copied_gives_no_warning(attached, emulated):
    """The suite takes warnings for errors."""
    call = tiny.prompts(1, width=9) | GREEDY
    found = attached.generate(**call, draft_model=None, logits_processor=[Uncopied()])
    assert found.tolist() == plain(**call).tolist() and not emulated.runs


def test_rows_without_a_token_to_fill_up_with(attached):
    """Of which our loop says what is missing, and transformers takes the end token."""
    call = tiny.prompts(3, width=9) | {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 9}
    assert attached.generate(**call, draft_model=None).tolist() == plain(**call).tolist()


def test_without_compiled_passes_and_without_attach(emulated, monkeypatch):
    call = tiny.prompts(1) | GREEDY
    hs.generate(tiny.llama(), **call, draft_model=None)
    hs.attach(tiny.llama(), optimize=False).generate(**call, draft_model=None)
    run_as(monkeypatch, has_kernel=True)
    hs.attach(tiny.llama()).generate(**call, draft_model=None)
    assert not emulated.runs


def test_a_stream(attached, emulated):
    _, _, tokenizer = hs.embedded_pair()
    streamer = TextIteratorStreamer(tokenizer)
    found = attached.generate(**tiny.prompts(1), **GREEDY, draft_model=None, streamer=streamer)
    assert emulated.runs and "".join(streamer) == tokenizer.decode(found[0])


def test_the_attached_tokenizer_serves_plain_calls_too():
    model, draft, tokenizer = hs.embedded_pair()
    hs.attach(model, draft, config=hs.SpeculativeConfig(tokenizer=tokenizer))
    call = GREEDY | {"inputs": tokenizer("import os\n", return_tensors="pt").input_ids, "stop_strings": "\n"}
    found = [model.generate(**call, **more).tolist() for more in ({}, {"draft_model": None})]
    assert found[0] == found[1] and tokenizer.decode(found[0][0]).endswith("\n")
