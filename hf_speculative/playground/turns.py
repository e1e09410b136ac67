"""Plain and speculative decoding side by side on one machine: they take turns, so that each has had the same time."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Timed(Iterator[T]):
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


def in_turns(runners: list[Timed]) -> Generator[tuple[int, Any], None, None]:
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
