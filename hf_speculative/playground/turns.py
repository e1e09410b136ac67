"""Run plain and speculative decoding in turns on one machine, with equal time for both."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor
from transformers.generation import BaseStreamer

T = TypeVar("T")


class Ended(BaseException):
    """No more tokens are wanted. Not an `Exception`, so that no handler on the way takes it for an error."""


class Steps(BaseStreamer):
    """A streamer that waits after each token until the next one is asked for."""

    def __init__(self) -> None:
        self.tokens: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        self.may_go_on = threading.Semaphore(0)
        self.is_ended = self.has_prompt = False

    def put(self, value: Tensor) -> None:
        if self.has_prompt:
            self.tokens.put(value.flatten().tolist())
            self.may_go_on.acquire()
            if self.is_ended:
                raise Ended
        self.has_prompt = True

    def end(self) -> None:
        pass


def stepwise(generate: Callable[..., Any], **kwargs) -> Generator[list[int], None, None]:
    """`generate(streamer=...)`, a token at a time: it runs in a thread of its own, and only while a token is asked for."""
    steps = Steps()

    def run() -> None:
        try:
            generate(**kwargs, streamer=steps)
            steps.tokens.put(None)
        except BaseException as error:
            steps.tokens.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (found := steps.tokens.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
            steps.may_go_on.release()
    finally:
        steps.is_ended = True
        steps.may_go_on.release()
        thread.join()


class Runner(Iterator[T]):
    """Steps that are timed.

    Attributes:
        seconds: what its own steps took.
    """

    def __init__(self, steps: Generator[T, Any, Any]):
        self.steps, self.seconds = steps, 0.0

    def __next__(self) -> T:
        start = time.perf_counter()
        try:
            return next(self.steps)
        finally:
            self.seconds += time.perf_counter() - start

    def close(self) -> None:
        self.steps.close()


def in_turns(runners: list[Runner]) -> Generator[tuple[int, Any], None, None]:
    """The steps of all runners, each with its runner's number: the next is always made by who has had least time.

    Closing it early closes them.
    """
    running = dict(enumerate(runners))
    try:
        while running:
            number = min(running, key=lambda n: running[n].seconds)
            try:
                step = next(running[number])
            except StopIteration:
                del running[number]
            else:
                yield number, step
    finally:
        for runner in runners:
            runner.close()
