"""Run plain and speculative decoding in turns on one machine, with equal time for both."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any

from torch import Tensor
from transformers.generation import BaseStreamer


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


def in_turns(runs: Sequence[Generator[Any, Any, Any]]) -> Generator[tuple[int, float, Any], None, None]:
    """The steps of all runs, each with its run's number, and the seconds that the run's own steps took so far.

    The next step is always made by the run that has had least time. Closing it early closes them.
    """
    seconds, running = [0.0] * len(runs), list(range(len(runs)))
    try:
        while running:
            number = min(running, key=lambda n: seconds[n])
            start = time.perf_counter()
            step = next(runs[number], None)
            seconds[number] += time.perf_counter() - start
            if step is None:
                running.remove(number)
            else:
                yield number, seconds[number], step
    finally:
        for run in runs:
            run.close()
