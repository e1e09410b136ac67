"""Texts of answers as clients get them: white space, parts of characters, what ends them, and the limits of each prompt."""

import copy
import json

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from hf_speculative.serving.app import build_app
from hf_speculative.serving.served import Served
from tests.architectures.check import build
from tests.support import tiny, tongues
from tests.support.served import TEMPLATE, running, streamed


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = copy.deepcopy(tongues.byte_level(300))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def target():
    return tiny.llama(vocab_size=300)


@pytest.fixture(scope="module")
def client(target, tokenizer):
    with (
        running(target, tokenizer=tokenizer, max_length=120, max_lanes=1, max_waiting=1) as engine,
        TestClient(build_app(Served(target, tokenizer, "tiny", engine))) as client,
    ):
        yield client


def with_strip(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that decodes as Llama 2's does: without the space that its texts begin with."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **tokenizer.special_tokens_map)


def test_a_text_that_goes_on_from_its_prompt_keeps_its_space():
    tokenizer = with_strip(tongues.metaspace(400, "first"))
    token, target = tokenizer.convert_tokens_to_ids("▁the"), tiny.llama(vocab_size=400)
    body = {"prompt": "import", "logit_bias": {str(token): 100}, "max_tokens": 3, "stop": ["the the the the"]}
    with (
        running(target, tokenizer=tokenizer) as engine,
        TestClient(build_app(Served(target, tokenizer, "tiny", engine))) as client,
    ):
        (choice,) = client.post("/v1/completions", json=body | {"logprobs": 1}).json()["choices"]
        assert choice["text"] == " the the the" == "".join(choice["logprobs"]["tokens"])
        pieces = [chunk["choices"][0]["text"] for chunk in streamed(client, "completions", body)]
        assert "".join(pieces) == " the the the"
        (choice,) = client.post("/v1/completions", json=body | {"echo": True, "stop": " the the"}).json()["choices"]
        assert choice["text"] == "import"
        only = client.post("/v1/completions", json=body | {"prompt": [[1]]}).json()["choices"]
        assert only[0]["text"] == "the the the", "a text of its own"


def test_bytes_of_a_token_are_its_own(client, tokenizer):
    """A token may be a part of a character."""
    token = tokenizer.convert_tokens_to_ids("ð")
    body = {"messages": [{"role": "user", "content": "x"}], "logit_bias": {str(token): 100}, "max_tokens": 1, "logprobs": True}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert [one["bytes"] for one in choice["logprobs"]["content"]] == [[0xF0]]


def test_special_tokens_end_an_answer_where_they_are_its_text(client, tokenizer):
    bias = {str(tokenizer.pad_token_id): 100}
    body = {"prompt": "hello", "logit_bias": bias, "stop": tokenizer.pad_token, "skip_special_tokens": False}
    answer = client.post("/v1/completions", json=body | {"max_tokens": 50}).json()
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "stop"


def test_prompts_of_a_list_have_their_own_limits(client):
    response = client.post("/v1/completions", json={"prompt": ["x" * 100] * 40, "max_tokens": 0, "echo": True})
    assert response.status_code == 200, response.text
    response = client.post("/v1/completions", json={"prompt": ["x", "x" * 4000], "max_tokens": 1})
    assert response.status_code == 400 and "4,000 characters" in response.text


def test_a_queue_that_one_request_fills_is_told_as_such(client):
    response = client.post("/v1/completions", json={"prompt": ["x"] * 5, "max_tokens": 20})
    assert response.status_code == 429, response.text


def test_penalties_reach_the_answers_of_encoder_decoders(tokenizer):
    body = {"prompt": [[5, 9, 11]], "logit_bias": {"7": 5}, "max_tokens": 4, "ignore_eos": True, "frequency_penalty": 2}
    with TestClient(build_app(Served(build("seq2seq", "bart"), tokenizer, "bart", None))) as client:
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"].count(tokenizer.decode([7])) < 4


def test_a_prompt_that_an_encoder_reads_has_no_logprobs(tokenizer):
    body = {"prompt": [[5, 9, 11]], "echo": True, "logprobs": 1, "max_tokens": 0}
    with TestClient(build_app(Served(build("seq2seq", "bart"), tokenizer, "bart", None))) as client:
        response = client.post("/v1/completions", json=body)
    assert response.status_code == 400 and "an encoder reads the prompt" in response.json()["error"]["message"]


def test_an_echo_has_the_places_of_its_tokens(target):
    """Special tokens that the tokenizer adds are no text."""
    tokenizer = tongues.byte_level(300, bos="<|begin|>")
    with (
        running(target, tokenizer=tokenizer) as engine,
        TestClient(build_app(Served(target, tokenizer, "tiny", engine))) as client,
    ):
        body = {"prompt": "hello", "echo": True, "logprobs": 0, "max_tokens": 0}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
        found = choice["logprobs"]
        assert choice["text"] == "hello" and found["tokens"][0] == "<|begin|>" and found["text_offset"][:2] == [0, 0]
        assert "".join(found["tokens"][1:]) == "hello" and found["text_offset"][-1] < 5
