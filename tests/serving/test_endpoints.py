"""The endpoints as OpenAI's client reads them: forms, tools, log-probabilities, several answers."""

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fastapi.testclient import TestClient
from huggingface_hub import ChatCompletionStreamOutput
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from transformers import GenerationConfig

from hf_speculative.serving import prompts, protocol, tools
from hf_speculative.serving.app import build_app
from hf_speculative.serving.processors import Penalties
from hf_speculative.serving.responses import Responses
from hf_speculative.serving.served import Served
from tests.support import tiny, tongues
from tests.support.served import PATIENCE, TEMPLATE, alone, running, streamed

WITH_TOOLS = TEMPLATE + "{{ '!' if tools }}"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False}
#: spaces without end are JSON, too: the tiny model likes them
TIGHT = SCHEMA | {"x-guidance": {"whitespace_flexible": False}}
PARAMETERS = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def target(tokenizer):
    target = tiny.llama(vocab_size=300)
    target.generation_config.eos_token_id = tokenizer.eos_token_id  # which ends a text in its form
    return target


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = copy.deepcopy(tongues.byte_level(300))
    tokenizer.chat_template = WITH_TOOLS
    return tokenizer


@pytest.fixture(scope="module")
def ids(tokenizer):
    return tokenizer("hello")["input_ids"]


@pytest.fixture(scope="module")
def client(target, tokenizer):
    draft = tiny.noisy_copy(target)
    with (
        running(target, tokenizer=tokenizer, draft_model=draft, num_draft_tokens=3, max_length=120) as engine,
        TestClient(build_app(Served(target, tokenizer, "tiny", engine)), raise_server_exceptions=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def openai(client):
    return OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)


def ask(client, path, body, kind):
    response = client.post(f"/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return kind.model_validate(response.json(), strict=False)


def test_several_answers_are_those_of_their_seeds(client, target, tokenizer):
    body = {"prompt": ["hello", tokenizer("x")["input_ids"]], "n": 2, "seed": 3, "temperature": 1, "max_tokens": 6}
    answer = ask(client, "completions", body, Completion)
    settings = {"do_sample": True, "temperature": 1.0, "max_new_tokens": 6}
    expected = [
        tokenizer.decode(alone(target, tokenizer(prompt)["input_ids"], seed, **settings), skip_special_tokens=True)
        for prompt in ("hello", "x")
        for seed in (3, 4)
    ]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    num_prompt = len(tokenizer("hello")["input_ids"]) + 1
    assert answer.usage.prompt_tokens == num_prompt and answer.usage.completion_tokens == 24
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_logprobs_are_the_models_own(client, target, tokenizer, ids):
    """Of prompt and answer, by one pass over both, whatever the temperature."""
    body = {"prompt": "hello", "echo": True, "logprobs": 2, "max_tokens": 9, "temperature": 0.5, "seed": 1}
    # As from OpenAI itself, the first token has none, which its types do not know.
    (choice,) = Completion.construct(**client.post("/v1/completions", json=body).json()).choices
    ids = ids + alone(target, ids, 1, do_sample=True, temperature=0.5, max_new_tokens=9)
    with torch.no_grad():
        scores = target(torch.tensor([ids])).logits[0].log_softmax(-1)
    found = choice.logprobs
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    expected = [scores[i, token].item() for i, token in enumerate(ids[1:])]
    torch.testing.assert_close(torch.tensor(found.token_logprobs[1:]), torch.tensor(expected), atol=1e-4, rtol=1e-4)
    best = [scores[i].max().item() for i in range(len(ids) - 1)]
    assert [max(top.values()) for top in found.top_logprobs[1:]] == pytest.approx(best, abs=1e-4)
    assert found.tokens == [tokenizer.decode([token]) for token in ids]
    assert choice.text.startswith("hello") and found.text_offset[0] == 0
    only = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = Completion.construct(**client.post("/v1/completions", json=only).json()).choices
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("temperature", [0, 1])
def test_logprobs_of_a_chat_streamed_and_whole(temperature, client, target, tokenizer, ids):
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 3, "max_tokens": 8, "seed": 2}
    body["temperature"] = temperature
    (choice,) = ask(client, "chat/completions", body, ChatCompletion).choices
    assert len(choice.logprobs.content) == 8 and all(len(one.top_logprobs) == 3 for one in choice.logprobs.content)
    tokens = alone(target, ids, 2, max_new_tokens=8, do_sample=bool(temperature))
    expected = [tokenizer.decode([token]) for token in tokens]
    assert [one.token for one in choice.logprobs.content] == expected
    choices = [c for chunk in streamed(client, "chat/completions", body) for c in chunk["choices"]]
    pieces = [one for c in choices if c.get("logprobs") for one in c["logprobs"]["content"]]
    assert [one["token"] for one in pieces] == expected


def test_usage_of_a_stream_comes_where_it_is_asked_for(client):
    body = {"messages": HELLO, "max_tokens": 4, "stream_options": {"include_usage": True}}
    *chunks, last = streamed(client, "chat/completions", body)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4 and "metrics" in last
    for chunk in [*chunks, last]:
        ChatCompletionChunk.model_validate(chunk)
    assert not any("usage" in chunk for chunk in streamed(client, "chat/completions", body | {"stream_options": None}))
    body["stream_options"]["continuous_usage_stats"] = True  # as guidellm asks
    _, *chunks = streamed(client, "chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] > 0 and counts[-1] == 4


@pytest.mark.parametrize("flags", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_p": 0.9}])
def test_what_transformers_chat_sends(flags, client, target, tokenizer, ids):
    """It asks for the model first. Its settings are `generate`'s, and its reader is that of huggingface_hub."""
    assert client.post("/load_model", json={"model": "tiny"}).text == 'data: {"status":"ready","cached":true}\n\n'
    config = GenerationConfig(max_new_tokens=6, **flags).to_json_string()
    body = {"model": "tiny", "messages": HELLO, "seed": 1, "generation_config": config}
    chunks = [*map(ChatCompletionStreamOutput.parse_obj_as_instance, streamed(client, "chat/completions", body))]
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert told == tokenizer.decode(alone(target, ids, 1, max_new_tokens=6, **flags), skip_special_tokens=True)
    assert chunks[-1].choices[0].finish_reason == "length"
    no_object = "give the text of a JSON object"
    for config, why in (('{"num_beams": 2}', "`num_beams=2` is not supported"), ("[]", no_object), (3, no_object)):
        refused = client.post("/v1/chat/completions", json=body | {"generation_config": config})
        assert refused.status_code == 400 and why in refused.text


def test_a_form_is_kept_to(openai):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": TIGHT, "strict": True}}
    body = {"messages": HELLO, "response_format": form, "max_tokens": 60, "temperature": 1, "seed": 1}
    answer = openai.chat.completions.create(model="tiny", **body)
    assert json.loads(answer.choices[0].message.content) == {"a": "b"}
    chunks = openai.chat.completions.create(model="tiny", stream=True, **body)
    assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == {"a": "b"}
    text = {"format": {"type": "json_schema", "name": "x", "schema": TIGHT, "strict": True}}
    answer = openai.responses.create(model="tiny", input="hello", text=text, max_output_tokens=60)
    assert json.loads(answer.output_text) == {"a": "b"} and answer.status == "completed"
    of_text = {"max_tokens": 60, "extra_body": {"response_format": form}}
    answer = openai.completions.create(model="tiny", prompt="hello", **of_text)
    assert json.loads(answer.choices[0].text) == {"a": "b"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("tag", ["", tools.OPEN])
def test_a_call_that_has_to_be_made(tag, choice, openai, client, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", WITH_TOOLS + f"{{# {tag} #}}")
    other = {"type": "function", "function": {"name": "other", "parameters": PARAMETERS}}
    asked = {"messages": HELLO, "tools": [TOOL, other], "max_tokens": 100}
    answer = openai.chat.completions.create(model="tiny", tool_choice=choice, **asked)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
    assert json.loads(call.function.arguments)["x"] in (1, 2)
    assert call.function.name == "look" if isinstance(choice, dict) else call.function.name in ("look", "other")
    chunks = streamed(client, "chat/completions", asked | {"tool_choice": choice})
    (delta,) = [d for chunk in chunks for c in chunk["choices"] if (d := c["delta"]).get("tool_calls")]
    assert delta["tool_calls"][0]["function"] == call.function.model_dump() and delta["tool_calls"][0]["index"] == 0


def test_calls_of_responses(client, openai):
    body = {"input": "hello", "tools": [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": True}]}
    body |= {"tool_choice": {"type": "function", "name": "look"}, "max_output_tokens": 100}
    answer = ask(client, "responses", body, Response)
    assert [item.type for item in answer.output] == ["function_call"] and answer.tool_choice.name == "look"
    events = list(openai.responses.create(model="tiny", stream=True, **body))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].arguments == answer.output[0].arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_strict_tools_need_a_form(client, tokenizer, monkeypatch):
    tool = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    body = {"messages": HELLO, "tools": [tool], "max_tokens": 4}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and "`strict` tools need `tool_choice`" in response.text
    monkeypatch.setattr(tokenizer, "chat_template", WITH_TOOLS + f"{{# {tools.OPEN} #}}")
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.fixture
def accepts(tokenizer):
    """Whether the grammar of a request's answer accepts a text."""
    compiled = pytest.importorskip("hf_speculative.grammar.compiled").compiled

    def accepts(text, has_tags=False, **asked):
        body = protocol.Chat.model_validate({"messages": HELLO, **asked})
        matcher = compiled(tools.grammar_of(body, has_tags), tokenizer, 300, [tokenizer.eos_token_id]).matcher()
        ids = tokenizer(text)["input_ids"]
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return accepts


@pytest.mark.parametrize("is_single", [False, True])
def test_the_grammar_of_calls_that_may_be_made(is_single, accepts):
    tool = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    asked = {"has_tags": True, "tools": [tool], "parallel_tool_calls": not is_single}
    call = '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
    assert all(accepts(text, **asked) for text in ("a < b", "", call, f"Let me see. {call}"))
    assert accepts(f"{call}\n{call}", **asked) is not is_single
    wrong = (call.replace("look", "jump"), call.replace("1", "3"), "<tool_call>")
    assert not any(accepts(text, **asked) for text in wrong)


DEFINED = {"$defs": {"a": {"enum": ["p"]}}}


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        (DEFINED | {"$ref": "#/$defs/a"}, "p", "q"),
        ({"type": "array", "items": {"$ref": "#/definitions/a"}, "definitions": DEFINED["$defs"]}, ["p"], ["q"]),
        ({"type": "array", "items": {"$ref": "#"}}, [[]], [{}]),
        (DEFINED | {"type": "object", "properties": {"enum": {"$ref": "#/$defs/a"}}}, {"enum": "p"}, {"enum": "q"}),
        ({"const": {"$ref": "#/a"}}, {"$ref": "#/a"}, {"$ref": "#/$defs/0/a"}),
        ({"$id": "https://a.example/b", "items": {"$ref": "#"}, "type": "array"}, [[]], [{}]),
    ],
    ids=str,
)
def test_pointers_of_a_tools_parameters(parameters, good, bad, accepts):
    other = {"type": "function", "function": {"name": "other", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    for arguments in (good, bad):
        call = json.dumps({"name": "look", "arguments": arguments})
        assert accepts(call, tools=[other, tool], tool_choice="required") is (arguments is good)


def test_a_conversation_of_responses_becomes_messages():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "a tree"},
        {"type": "message", "role": "assistant", "content": "A tree."},
        {"role": "user", "content": "thanks"},
    ]
    body = Responses.model_validate({"input": items, "instructions": "be brief"})
    assert [message.role for message in body.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert body.messages[2].reasoning_content == "hm" and body.messages[2].tool_calls[0]["function"]["name"] == "look"


def form_of(**schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def reasoning(content):
    return {"input": [{"type": "reasoning", "content": content}]}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        *(("responses", reasoning(content), None) for content in ([{"a": 1}], 5, [5], [{"text": 5}], {"a": 1}, "abc")),
        ("responses", {"input": [{"role": "user", "content": 5}]}, "content"),
        ("responses", {"input": [{"role": "user", "content": [5]}]}, "content"),
        ("responses", {"input": "x", "messages": HELLO}, "messages"),
        ("chat/completions", {"response_format": form_of(type="structural_tag", triggers=["<"])}, "response_format"),
        ("chat/completions", {"response_format": form_of(grammars=[{"lark_grammar": "start:"}])}, "response_format"),
        ("chat/completions", {"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ("chat/completions", {"stop_token_ids": [5, 300]}, "stop_token_ids"),
        ("completions", {"prompt": "x", "stop_token_ids": [300], "max_tokens": 0, "echo": True}, "stop_token_ids"),
        ("responses", {"input": "x", "metadata": {"a": [float("nan")]}}, "metadata"),
        ("responses", {"input": "x", "metadata": {"a": float("inf")}, "stream": True}, "metadata"),
        ("chat/completions", {"tools": [TOOL | {"function": {"parameters": {"const": float("nan")}}}]}, "tools"),
    ],
    ids=str,
)
def test_what_is_refused_before_anything_is_generated(path, body, field, client, target, monkeypatch):
    monkeypatch.setattr(type(target), "forward", lambda *args, **kwargs: pytest.fail("a pass"))
    body = ({"messages": HELLO} if path == "chat/completions" else {}) | body
    response = client.post(f"/v1/{path}", content=json.dumps(body))
    assert response.status_code == 400 and response.json()["error"]["param"] == field, response.text


def test_an_answer_without_an_end_has_a_least_length_as_well(client, target, ids):
    """As vLLM's benchmark asks."""
    body = {"prompt": "hello", "max_tokens": 6, "min_tokens": 6, "ignore_eos": True}
    assert ask(client, "completions", body, Completion).usage.completion_tokens == 6


@pytest.mark.parametrize("name", ["ignore_eos", "stop_token_ids", "min_tokens"])
def test_fields_of_vllm_that_say_where_an_answer_ends(name, client, target, tokenizer, ids, monkeypatch):
    tokens = alone(target, ids, max_new_tokens=12)
    end = tokens[4]
    at = tokens.index(end)
    body = {"prompt": "hello", "max_tokens": 12, "logprobs": 0}
    if name == "stop_token_ids":
        (choice,) = ask(client, "completions", body | {name: [end]}, Completion).choices
        assert choice.text == tokenizer.decode(tokens[:at]) and choice.finish_reason == "stop"
        return
    served = client.app.middleware_stack  # the engine's model ends at `end` from here on
    assert served is not None
    monkeypatch.setattr(target.generation_config, "eos_token_id", end)
    expected = tokens if name == "ignore_eos" else alone(target, ids, max_new_tokens=12, min_new_tokens=at + 2)
    body |= {"ignore_eos": True} if name == "ignore_eos" else {"min_tokens": at + 2}
    (choice,) = ask(client, "completions", body, Completion).choices
    assert choice.logprobs.tokens == [tokenizer.decode([token]) for token in expected]


def test_an_answer_ends_where_the_template_ends_one(target, tokenizer):
    """Though the generation config does not name that token."""
    own, target = copy.deepcopy(tokenizer), copy.deepcopy(target)
    target.generation_config.eos_token_id = None
    tokens = alone(target, own("hello")["input_ids"], max_new_tokens=12)
    end = own.convert_ids_to_tokens(tokens[4])
    own.add_special_tokens({"additional_special_tokens": [end]})
    own.chat_template = TEMPLATE.replace("{% endfor %}", f"{{{{ {end!r} if message['role'] == 'assistant' }}}}{{% endfor %}}")
    with running(target, tokenizer=own) as engine, TestClient(build_app(Served(target, own, "tiny", engine))) as client:
        body = {"messages": HELLO, "max_tokens": 12}
        answer = ask(client, "chat/completions", body, ChatCompletion)
        assert answer.usage.completion_tokens == tokens.index(tokens[4]) + 1
        assert answer.choices[0].finish_reason == "stop" and engine.ended == {"stop": 1}
        body = {"prompt": "hello", "max_tokens": 12}
        assert ask(client, "completions", body, Completion).usage.completion_tokens == 12
        body = {"messages": HELLO, "max_tokens": tokens.index(tokens[4]) + 1}
        assert ask(client, "chat/completions", body, ChatCompletion).choices[0].finish_reason == "stop"
        assert engine.ended == {"stop": 2, "length": 1}, "its last token is its end"


def test_penalties_count_the_answer_alone(client, target, tokenizer, ids):
    assert Penalties(2, 0.5, 1.0)(torch.tensor([[1, 1, 2, 2, 3]]), torch.zeros(1, 5)).tolist() == [[0, 0, -2, -1.5, 0]]
    body = {"prompt": "hello", "max_tokens": 20, "frequency_penalty": 2, "presence_penalty": 1}
    expected = alone(target, ids, max_new_tokens=20, logits_processor=[Penalties(len(ids), 2.0, 1.0)])
    assert ask(client, "completions", body, Completion).choices[0].text == tokenizer.decode(expected)


def test_tokenize(client, ids):
    for body in ({"prompt": "hello"}, {"messages": HELLO}):
        assert client.post("/tokenize", json=body).json() == {"count": len(ids), "max_model_len": 120, "tokens": ids}
    assert client.post("/tokenize", json={}).status_code == 400


def test_keys_origins_and_limits(target, tokenizer):
    origin = "https://a.example"
    app = build_app(Served(target, tokenizer, "tiny", None, max_tokens=5), api_key="secret", origins=[origin])
    with TestClient(app) as client:
        body = {"prompt": "x", "max_tokens": 2}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = client.post("/v1/completions", json=body, headers=headers)
            assert response.status_code == 401 and response.json()["error"]["type"] == "authentication_error"
        assert client.get("/v1/models").status_code == 401 and client.get("/health").status_code == 200
        client.headers["authorization"] = "Bearer secret"
        response = client.post("/v1/completions", json=body, headers={"origin": origin})
        assert response.status_code == 200 and response.headers["access-control-allow-origin"] == origin
        response = client.post("/v1/completions", json=body | {"max_tokens": 6})
        assert response.status_code == 400 and "at most 5" in response.text
        assert client.post("/v1/completions", json={"prompt": "x"}).json()["usage"]["completion_tokens"] <= 5


def test_no_more_requests_than_may_be_under_way(target, tokenizer, monkeypatch):
    """Those that are read and tokenised count, too: each holds its body."""
    read, may_go_on, has_begun = type(tokenizer).__call__, threading.Event(), threading.Semaphore(0)

    def slow(self, *args, **kwargs):
        has_begun.release()
        assert may_go_on.wait(PATIENCE)
        return read(self, *args, **kwargs)

    body = {"prompt": "x", "max_tokens": 2}
    with (
        running(target, tokenizer=tokenizer, max_lanes=1, max_waiting=1) as engine,
        TestClient(build_app(Served(target, tokenizer, "tiny", engine))) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        monkeypatch.setattr(type(tokenizer), "__call__", slow)
        answers = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(2)]
        assert all(has_begun.acquire(timeout=PATIENCE) for _ in answers)
        response = client.post("/v1/completions", json=body)
        may_go_on.set()
        assert response.status_code == 429 and response.headers["retry-after"] == "1"
        assert [answer.result(PATIENCE).status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("path", ["v1/chat/completions", "tokenize"])
def test_clients_give_variables_of_the_template_alone(path, client, tokenizer, monkeypatch):
    for name in ("padding", "max_length", "tokenize", "chat_template", "messages", "processor_kwargs", "text_pair"):
        response = client.post(f"/{path}", json={"messages": HELLO, "chat_template_kwargs": {name: 1}})
        assert response.status_code == 400 and f"holds '{name}'" in response.json()["error"]["message"]
    monkeypatch.setattr(tokenizer, "chat_template", WITH_TOOLS + "{{ mood }}")
    count = client.post("/tokenize", json={"messages": HELLO, "chat_template_kwargs": {"mood": "!!"}}).json()["count"]
    assert count > client.post("/tokenize", json={"messages": HELLO}).json()["count"]


class Processor:
    """Of a model that reads images: what it makes of a message is more than ids."""

    chat_template = TEMPLATE

    def __init__(self, tokenizer):
        self.tokenizer, self.turns = tokenizer, []

    def apply_chat_template(self, turns, **keywords):
        self.turns.append(turns)
        inputs = self.tokenizer("hello", return_tensors="pt")
        if not any(part["type"] == "image" for turn in turns for part in turn["content"]):
            inputs["mm_token_type_ids"] = torch.zeros_like(inputs["input_ids"])  # as some have it, with images or without
        else:
            inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1])[None]
        return inputs

    def __call__(self, images=None, text=None, **keywords):
        pytest.fail("called")


def test_a_processor_gets_no_keywords_of_clients(tokenizer):
    processor = Processor(tokenizer)
    assert prompts.variables_of({"max_pixels": 1}, processor) == {}
    with pytest.raises(protocol.BadRequest, match="holds 'images'"):
        prompts.variables_of({"images": "/etc/passwd"}, processor)


def test_images_go_through_generate(target, tokenizer, ids):
    """Several in a message, on their own thread; the engine never hears of them. Their size is not that of a prompt."""
    processor, url = Processor(tokenizer), f"data:image/png;base64,{'A' * 2_000_000}"
    images = [{"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, *images]}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 1, "seed": 3}
    tokens = alone(target, ids, 3, do_sample=True, temperature=1.0, max_new_tokens=8)
    expected = tokenizer.decode(tokens, skip_special_tokens=True)
    with (
        running(target, tokenizer=tokenizer) as engine,
        TestClient(build_app(Served(target, processor, "tiny", engine))) as client,
    ):
        answer = ask(client, "chat/completions", body, ChatCompletion)
        assert answer.choices[0].message.content == expected and answer.usage.completion_tokens == 8
        chunks = streamed(client, "chat/completions", body)
        assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == expected
        assert engine.num_prompt_tokens == 0
        content = processor.turns[0][0]["content"]
        assert content == [{"type": "text", "text": "what?"}, *[{"type": "image", "url": url}] * 2]
        response = client.post("/v1/chat/completions", json=body | {"logprobs": True})
        assert response.status_code == 400 and "`logprobs`" in response.text
        of_a_file = [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]
        response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": of_a_file}]})
        assert response.status_code == 400 and "`data:` or `http" in response.text
        body["messages"] = [{"role": "user", "content": "x" * 2_000_000}]
        assert "cannot fit" in client.post("/v1/chat/completions", json=body).text
        body["messages"] = HELLO
        assert client.post("/v1/chat/completions", json=body).status_code == 200 and engine.num_prompt_tokens > 0
