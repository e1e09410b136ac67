"""Requests to an engine, and what plain `generate` gives for each of them alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch

from hf_speculative.serving.engine import Engine

#: long enough for any machine; a test that hangs fails
PATIENCE = 120


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
        engine.close(drain=False, timeout=PATIENCE)
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
