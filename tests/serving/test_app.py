"""The server as its clients see it."""

import copy
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from transformers import GPTNeoConfig, GPTNeoForCausalLM

import hf_speculative as hs
from hf_speculative.call.attached import attached_to
from hf_speculative.serving import guard
from hf_speculative.serving.app import build_app
from hf_speculative.serving.served import Served
from tests.architectures.check import build
from tests.support import tiny, tongues
from tests.support.command import run_command
from tests.support.served import PATIENCE, TEMPLATE, alone, running, streamed, submit

JSON = {"content-type": "application/json"}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
HALF = POST % (100, b"{")


@pytest.fixture(scope="module")
def target():
    return tiny.llama(vocab_size=300)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = copy.deepcopy(tongues.byte_level(300))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def engine(target, tokenizer):
    drafts = {"draft_model": tiny.noisy_copy(target), "num_draft_tokens": 3}
    with running(target, tokenizer=tokenizer, **drafts, max_length=100) as engine:
        yield engine


@pytest.fixture
def client(target, tokenizer, engine):
    app = build_app(Served(target, tokenizer, "tiny", engine), max_body=2000)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def text_alone(target, tokenizer, prompt, seed=0, **settings):
    return tokenizer.decode(alone(target, tokenizer(prompt)["input_ids"], seed, **settings), skip_special_tokens=True)


def text_streamed(client, body):
    return "".join(chunk["choices"][0]["text"] for chunk in streamed(client, "completions", body))


SAMPLED = {"temperature": 0.7, "seed": 5}


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        ({}, {}),
        ({"temperature": 0}, {}),
        (SAMPLED | {"top_p": 0.9}, {"top_p": 0.9}),
        (SAMPLED | {"top_k": 3}, {"top_k": 3}),
        (SAMPLED | {"top_k": -1}, {"top_k": 0}),
        (SAMPLED | {"min_p": 0.9}, {"min_p": 0.9}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ],
)
def test_completions(body, settings, client, target, tokenizer):
    settings = {"max_new_tokens": 9} | ({"do_sample": True, "temperature": 0.7} if "seed" in body else {}) | settings
    body = {"prompt": "hello", "max_tokens": 9} | body
    expected = text_alone(target, tokenizer, "hello", body.get("seed", 0), **settings)
    answer = client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == expected and answer["model"] == "tiny"
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(tokenizer("hello")["input_ids"]) and usage["completion_tokens"] == 9
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # no other row has begun so
    counts = answer["metrics"]["speculative_decoding"]
    assert counts["num_draft_tokens"] >= counts["num_accepted_draft_tokens"] > 0
    chunks = streamed(client, "completions", body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["metrics"]["speculative_decoding"] == counts


@pytest.mark.parametrize("stop", [[], ["never"], ["\ufffd"]])
def test_a_stream_tells_half_a_character_at_the_end(stop, client, tokenizer):
    token = next(i for i in range(300) if tokenizer.decode([i]) == "\ufffd")
    body = {"prompt": "hello", "max_tokens": 1, "logit_bias": {str(token): 100}, "stop": stop}
    expected = "" if "\ufffd" in stop else "\ufffd"
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected
    assert text_streamed(client, body) == expected


def test_an_answer_of_no_length_fits(client):
    """The default of 1,024 new tokens is no reason to refuse a prompt."""
    assert client.post("/v1/completions", json={"prompt": "hello"}).json()["usage"]["total_tokens"] <= 100


def test_models_health_and_metrics(client):
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json()["id"] == "tiny" and client.get("/v1/models/x").status_code == 404
    assert client.get("/health").json() == {"status": "ok"}
    client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 9})
    for path in ("/metrics", "/metrics/"):
        text = client.get(path, follow_redirects=False).text
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert float(lines['vllm:num_requests_running{model_name="tiny"}']) == 0
        assert float(lines['vllm:generation_tokens_total{model_name="tiny"}']) == 9
        assert float(lines['vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"}']) > 0
        assert float(lines['vllm:request_success_total{finished_reason="length",model_name="tiny"}']) == 1
        first = lines['vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="0"}']
        assert 0 < float(first) <= float(lines['vllm:spec_decode_num_drafts_total{model_name="tiny"}'])
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


HELLO = {"role": "user", "content": "hello"}
PROMPTS = {"completions": {"prompt": "hello"}, "chat/completions": {"messages": [HELLO]}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("completions", {"prompt": "x", "max_tokens": 200}, 400, "more than the 100 that fit"),
        ("completions", {"prompt": "x", "max_tokens": 0}, 400, "give 1 or more"),
        ("completions", {"prompt": ["x"] * 9, "n": 15}, 400, "more than 128 answers"),
        ("completions", {"prompt": [["x"]]}, 400, "prompt"),
        ("completions", {"prompt": [300]}, 400, "300"),
        ("completions", {"prompt": [300], "echo": True, "logprobs": 1}, 400, "300"),
        ("completions", {"prompt": ""}, 400, "empty"),
        ("completions", {"prompt": [[]], "echo": True, "max_tokens": 0}, 400, "empty"),
        ("completions", {"prompt": "x", "model": "other"}, 404, "'tiny' is"),
        ("completions", {"prompt": "x" * 3000}, 413, "2000 bytes"),
        ("chat/completions", {"messages": [HELLO], "functions": []}, 400, "functions"),
        ("chat/completions", {}, 400, "`messages` is missing"),
        ("responses", {"input": "x", "previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ("chat/completions", {"messages": [IMAGE]}, 400, "'image_url', and this model reads text alone"),
        ("completions", {"prompt": "x", "top_p": 0.5}, 400, "`top_p` has no effect on this model's default"),
        ("chat/completions", {"messages": [HELLO], "min_p": 0.1}, 400, "give a `temperature`"),
        ("completions", b"{", 400, ""),
        ("completions", b'{"prompt": "a\\ud800"}', 400, "hex escape"),
        ("completions", b'{"prompt": "x", "temperature": 1e400}', 400, "`temperature=inf`"),
    ],
)
def test_errors_have_the_shape_of_the_api(path, body, status, words, client):
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client.post(f"/v1/{path}", content=content, headers=JSON)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]["message"] and response.json()["error"]["type"].endswith("error")
    assert "/" not in response.json()["error"]["message"]  # no path of this machine


def test_a_model_without_a_chat_template_completes_texts(client, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    for path, body in (("chat/completions", {"messages": [HELLO]}), ("responses", {"input": "x"})):
        response = client.post(f"/v1/{path}", json=body)
        assert response.status_code == 400 and "no chat template" in response.json()["error"]["message"]
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200


def test_a_failing_pass_tells_the_client_and_not_how(client, target):
    def fail(module, args, kwargs):
        raise RuntimeError("/secret/path")

    with target.register_forward_pre_hook(fail, with_kwargs=True):
        response = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
        assert response.status_code == 500 and "secret" not in response.text
        with client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
            assert "secret" not in "".join(response.iter_lines())
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200


def test_sampled_without_a_seed_differs(client):
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 1.0}
    torch.manual_seed(0)
    texts = {client.post("/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1


def test_settings_of_sampling_that_change_nothing(client):
    body = {"prompt": "hello", "max_tokens": 3, "top_p": 1, "top_k": 0, "min_p": 0}
    assert client.post("/v1/completions", json=body).status_code == 200


NOT_HONOURED = {
    "stop": ["", [""], [5], ["x"] * 5, "x" * 257],
    "model": [5, ["a"]],
    "top_p": [0, True],
    "stream": ["yes"],
    "max_tokens": [5.5],
    "frequency_penalty": [1e308, -2.1],
    "logit_bias": [{"x": 1}, {"5": 101}, {"9" * 50: 1}, {"\uff15": 1}],
    "temperature": [1e-320, -1, "hot"],
    "seed": ["five", 2**64],
    "best_of": [2],
    "nonsense": [1],
    "stop_token_ids": [[-1], 5],
    "guided_json": [{}],
    "suffix": ["x"],
}


@pytest.mark.parametrize("field", NOT_HONOURED)
def test_fields_that_cannot_be_honoured(field, client):
    for value in NOT_HONOURED[field]:
        response = client.post("/v1/completions", json={"prompt": "x", field: value})
        assert response.status_code == 400 and f"`{field}=" in response.json()["error"]["message"], response.text


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_what_cannot_fit_is_refused_unread(path, target, tokenizer, engine, monkeypatch):
    for name in ("__call__", "apply_chat_template"):
        monkeypatch.setattr(type(tokenizer), name, lambda *args, **kwargs: pytest.fail("read"))
    text = "x" * 1700
    prompt = {"prompt": text * 2} if path == "completions" else {"messages": [{"role": "user", "content": text}] * 2}
    with TestClient(build_app(Served(target, tokenizer, "tiny", engine))) as client:
        response = client.post(f"/v1/{path}", json=prompt)
    assert response.status_code == 400 and "has 3,4" in response.text and "more than 3,200 cannot fit" in response.text


@pytest.mark.parametrize("path", PROMPTS)
def test_logit_bias(path, client, tokenizer):
    body = PROMPTS[path] | {"max_tokens": 4, "logit_bias": {"70": 100}}
    (choice,) = client.post(f"/v1/{path}", json=body).json()["choices"]
    assert choice.get("text", choice.get("message", {}).get("content")) == tokenizer.decode([70] * 4)
    response = client.post(f"/v1/{path}", json=PROMPTS[path] | {"logit_bias": {"300": 1}})
    assert response.status_code == 400 and "names the token 300, and the model has 300" in response.text


@pytest.mark.parametrize("of_engine", [True, False])
def test_stop_texts_are_cut_off_and_not_looked_for_in_the_prompt(of_engine, client, target, tokenizer):
    """Streamed or not, whatever pieces they come in, and without an engine, too."""
    whole = text_alone(target, tokenizer, "hello", max_new_tokens=30)
    if not of_engine:
        client = TestClient(build_app(Served(target, tokenizer, "tiny", None)))
    for start, length in ((0, 1), (5, 1), (8, 3), (11, 6)):
        stop = whole[start : start + length]
        body = {"prompt": "hello", "max_tokens": 30, "stop": [stop, "never there"]}
        answer = client.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
        assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] < 30
        assert text_streamed(client, body) == whole[: whole.index(stop)]
    chat = client.post("/v1/chat/completions", json={"messages": [HELLO], "max_tokens": 30, "stop": stop}).json()
    assert chat["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
    assert chat["choices"][0]["finish_reason"] == "stop"
    across = "o" + whole[0]
    answer = client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 30, "stop": across}).json()
    assert answer["choices"][0]["text"] == whole.split(across)[0]
    body = {"prompt": "hello", "max_tokens": 30, "stop": whole[-2:] + "!"}
    assert text_streamed(client, body) == whole, "nothing stays held back"


def test_ids_of_clients_are_labels(client, target, tokenizer):
    """Two of one name run at a time, and the one that ends does not end the other."""
    expected = text_alone(target, tokenizer, "hello", max_new_tokens=60)
    body, name = {"prompt": "hello", "max_tokens": 60}, {"x-request-id": "same"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/completions", json=body, headers=name), range(4)))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == [expected] * 4
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    assert len({answer.json()["id"] for answer in answers}) == 4


@pytest.mark.parametrize("path", PROMPTS)
def test_others_are_answered_while_a_prompt_is_read(path, client, tokenizer, monkeypatch):
    """Tokenising waits here for another request to be answered, which it could not be on the same thread."""
    answered, kind = threading.Event(), type(tokenizer)
    name = "__call__" if path == "completions" else "apply_chat_template"
    read = getattr(kind, name)

    def slow(self, *args, **kwargs):
        assert answered.wait(PATIENCE)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(kind, name, slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, f"/v1/{path}", json=PROMPTS[path] | {"max_tokens": 2})
        assert client.get("/health").status_code == 200
        answered.set()
        assert answer.result(PATIENCE).status_code == 200


@pytest.fixture
def address(target, tokenizer, engine, monkeypatch):
    """Of a real server, which is impatient."""
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    app = build_app(Served(target, tokenizer, "tiny", engine))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize("more", [b"", b" "])
def test_clients_that_do_not_go_on(more, address):
    """They send half a body, or one that trickles."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        client.sendall(HALF)
        client.settimeout(0.1)
        until, got = time.monotonic() + PATIENCE, None
        while got is None:
            assert time.monotonic() < until
            try:
                got = client.recv(1000)
            except TimeoutError:
                client.sendall(more)
        assert got.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_its_lane_back(stream, address, target, engine):
    may_go_on, has_begun = threading.Event(), threading.Event()

    def hold(module, args, kwargs):
        has_begun.set()
        assert may_go_on.wait(PATIENCE)

    hook = target.register_forward_pre_hook(hold, with_kwargs=True)
    try:
        with socket.create_connection(address) as client:
            body = json.dumps({"prompt": "hello", "max_tokens": 90, "stream": stream}).encode()
            client.sendall(POST % (len(body), body))
            assert has_begun.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while not all(request.is_cancelled for request in list(engine._running.values())):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        may_go_on.set()
        hook.remove()
    engine.close(timeout=PATIENCE)
    assert engine.ended == {"abort": 1} and engine.statistics.num_new_tokens < 90


LOOKUP = ["--prompt-lookup-num-tokens", "3"]
NEO = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}


@pytest.mark.parametrize(
    "given, optimize, label", [([], "auto", "eagle3"), (["--no-optimize"], False, "eagle3"), (LOOKUP, "auto", "ngram")]
)
def test_the_command_serves_an_attached_model(given, optimize, label, monkeypatch):
    """Else its passes would be those of a model that nobody has attached: the slowest."""
    built = Mock()
    monkeypatch.setattr("hf_speculative.serving.app.build_app", built)
    monkeypatch.setattr(uvicorn, "run", Mock())
    run_command("serve", *given)
    served = built.call_args.args[0]
    engine = served.engine
    assert attached_to(served.model)[1].optimize == engine.options.config.optimize == optimize
    assert engine.options.source.label == label
    engine.close()


def test_the_command_knows_the_tokenizer_of_a_draft(tmp_path, monkeypatch):
    """One of the same size may give other ids to its tokens."""
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    for name, model, own in (("target", target, tokenizer), ("draft", tongues.moved(draft, tokenizer, other), other)):
        model.save_pretrained(tmp_path / name)
        own.save_pretrained(tmp_path / name)
    monkeypatch.setattr("hf_speculative.serving.app.build_app", built := Mock())
    monkeypatch.setattr(uvicorn, "run", Mock())
    output = run_command("serve", tmp_path / "target", "--draft-model", tmp_path / "draft", "--num-draft-tokens", "4").output
    assert built.called, output
    with closing(built.call_args.args[0].engine) as engine:
        answer = submit(engine, tokenizer("def main():\n")["input_ids"], max_new_tokens=20, do_sample=False)
        assert len(answer.wait()) and engine.statistics.draft_acceptance_rate > 0.3


def test_the_command_serves_a_model_on_the_universal_path(tmp_path, monkeypatch):
    """Options of drafts go to each call, whether a `SpeculativeConfig` has them or not; a limit counts."""
    target = GPTNeoForCausalLM(GPTNeoConfig(**tiny.COMMON | NEO | {"vocab_size": 300}))
    target.save_pretrained(tmp_path)
    tongues.byte_level(300).save_pretrained(tmp_path)
    built = Mock()
    monkeypatch.setattr("hf_speculative.serving.app.build_app", built)
    monkeypatch.setattr(uvicorn, "run", Mock())
    given = (
        *LOOKUP,
        "--draft-sample-method",
        "greedy",
        "--num-assistant-tokens-schedule",
        "constant",
        "--reproducible",
        "--max-length",
        "20",
    )
    assert run_command("serve", tmp_path, *given, "--host", "0.0.0.0", "--api-key", "x").exit_code == 0
    app = build_app(*built.call_args.args, **built.call_args.kwargs)
    with TestClient(app) as client, hs.record() as statistics:
        client.headers["authorization"] = "Bearer x"
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 20
        body = {"prompt": [5, 9], "max_tokens": 9, "logit_bias": {"70": 100}}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert 0 < statistics.num_draft_tokens <= 3 * statistics.num_spec_steps
        response = client.post("/v1/completions", json={"prompt": [5, 9], "max_tokens": 19})
        assert response.status_code == 400 and "more than the 20 that fit" in response.text
        assert client.post("/v1/completions", json={"prompt": [5, 9]}).json()["usage"]["total_tokens"] <= 20
    refused = run_command("serve", tmp_path, "--draft-model", "suffix", "--corpus", tmp_path / "missing.txt")
    assert refused.exit_code == 2 and "missing.txt" in refused.output
    refused = run_command("serve", tmp_path, "--max-lanes", "3")
    assert refused.exit_code == 2 and "--max-lanes and --max-waiting have no effect on GPTNeo" in refused.output


def test_a_prompt_that_an_encoder_reads_takes_no_room_from_its_answer(tokenizer):
    model = build("seq2seq", "bart")
    with TestClient(build_app(Served(model, tokenizer, "bart", None, max_length=24))) as client:
        body = {"prompt": [[5, 9, 11] * 7], "max_tokens": 20, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 20
        refused = client.post("/v1/completions", json=body | {"max_tokens": 25})
        assert refused.status_code == 400 and "more than the 24 that fit" in refused.text


@pytest.mark.parametrize("key", ["", "x"])
def test_the_command_warns_of_a_server_without_a_key(key, monkeypatch):
    monkeypatch.setattr("hf_speculative.serving.app.build_app", built := Mock())
    monkeypatch.setattr(uvicorn, "run", Mock())
    monkeypatch.setenv("HF_SPECULATIVE_API_KEY", key)
    output = run_command("serve", "--host", "0.0.0.0").output
    assert ("without a password" in output) == (not key)
    built.call_args.args[0].engine.close()
