"""Requests to an engine, and what plain `generate` gives for each of them alone."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import httpx
import pytest
import torch

from hf_speculative.serving.engine import Engine

#: long enough for any machine; a test that hangs fails
PATIENCE = 120
#: a chat template that repeats what is said
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Answer:
    """What a request got so far."""

    def __init__(self):
        self.tokens: list[int] = []
        self.error: BaseException | None = None
        self.has_begun, self.is_done = threading.Event(), threading.Event()

    def receive(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.has_begun.set()

    def finish(self, error: BaseException | None) -> None:
        assert not self.is_done.is_set()
        self.error = error
        self.is_done.set()

    def wait(self) -> list[int]:
        assert self.is_done.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.tokens


@contextmanager
def running(model, **settings):
    engine = Engine(model, **settings)
    try:
        yield engine
    finally:
        for request in (*engine._waiting, *engine._running.values()):
            request.cancel()
        engine.close(timeout=PATIENCE)
        assert not engine.is_alive


def submit(engine: Engine, prompt: list[int], seed: int | None = None, **settings) -> Answer:
    answer = Answer()
    answer.request = engine.submit(prompt, answer.receive, answer.finish, seed, **settings)
    return answer


def alone(model, prompt: list[int], seed: int = 0, media=None, **settings) -> list[int]:
    """Plain `generate`'s new tokens under a seed."""
    ids = torch.tensor([prompt])
    torch.manual_seed(seed)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **media or {}, **settings)
    return output[0, len(prompt) :].tolist()


def streamed(client, path: str, body: dict) -> list[dict]:
    """The events of an answer."""
    with client.stream("POST", f"/v1/{path}", json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data")]
    assert path == "responses" or lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@contextmanager
def serving(*command: str, path: str = "/"):
    """The address of a command's server, in a process of its own, once it answers at `path`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    command = (sys.executable, "-m", "hf_speculative", *command, "--host", "127.0.0.1", "--port", str(port))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as server:
        try:
            while server.poll() is None and time.monotonic() < until:
                with suppress(httpx.TransportError):
                    if httpx.get(address + path).status_code == 200:
                        break
                time.sleep(0.2)
            else:
                pytest.fail("it does not start")
            yield address
        finally:
            server.terminate()
