"""Time one call of `generate`: time to the first tokens, total time, peak memory."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..call.output import Rows
from ..call.statistics import Statistics
from ..generation import generate_rounds
from ..reports.timing import timed, wait_for


@dataclass(frozen=True)
class Decoded:
    """The result of decoding a batch of prompts.

    Attributes:
        new_ids: new tokens of each row; padding follows an end token.
        seconds: wall time until all rows were done.
        first_seconds: until the first new tokens came; `None` if unknown.
        num_first_tokens: the number of these, of all rows.
        num_target_passes: forward passes of the target; 0 if unknown.
        steps: pairs of a number of new tokens a row and the time at which all rows had them.
    """

    new_ids: list[list[int]]
    seconds: float
    first_seconds: float | None = None
    num_first_tokens: int = 0
    num_target_passes: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)


def timed_generate(generate: Callable[..., Tensor], target: PreTrainedModel, call: dict[str, Any]) -> Decoded:
    """Time a `generate` that returns ids alone.

    Args:
        call: its keywords, with all stopping criteria in `stopping_criteria`.
    """
    width = 1 if target.config.is_encoder_decoder else call["input_ids"].shape[1]
    clock = Clock(call["stopping_criteria"], width)

    def run() -> Tensor:
        clock.start = time.perf_counter()
        return generate(**call | {"stopping_criteria": StoppingCriteriaList([clock])})

    ids, seconds = timed(run, target.device)
    rows = enumerate(ids[:, width:].tolist())
    new_ids = [row[: int(min(len(row), clock.ends.get(index, math.inf) - width))] for index, row in rows]
    num_first, first_seconds = clock.steps[0] if clock.steps else (0, None)
    return Decoded(new_ids, seconds, first_seconds, num_first * len(new_ids), steps=clock.steps)


def all_rounds(target: PreTrainedModel, call: dict[str, Any]) -> tuple[Rows, Statistics, Decoded, list[float]]:
    """Time our own `generate`, and each row's end. The first round reads the prompts."""
    rows, first, counts = Rows(len(call["input_ids"])), (0.0, 0), Statistics()
    ends: dict[int, float] = {}

    def run() -> None:
        nonlocal first, counts
        start = time.perf_counter()
        for number, (round, counts) in enumerate(generate_rounds(target, **call)):  # noqa: B007, the last counts are whole
            if number == 0:
                first = time.perf_counter() - start, sum(map(len, round.tokens))
            rows.follow(round)
            done = [row for row, is_done in zip(round.rows, round.done, strict=True) if is_done]
            ends.update(dict.fromkeys(done, time.perf_counter() - start))

    _, seconds = timed(run, target.device)
    decoded = Decoded(rows.new_tokens, seconds, *first)
    return rows, counts, decoded, [ends.get(row, seconds) for row in range(len(decoded.new_ids))]


class Clock(StoppingCriteria):
    """Combine `criteria`, and record the times of calls and the width at which each row ended.

    Args:
        width: of the prompts, padding included.
    """

    def __init__(self, criteria: list[StoppingCriteria], width: int):
        self.criteria, self.width = StoppingCriteriaList(criteria), width
        self.ends: dict[int, int] = {}
        self.start = 0.0
        self.steps: list[tuple[int, float]] = []

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        if not self.steps:
            wait_for(input_ids.device)
        self.steps.append((input_ids.shape[1] - self.width, time.perf_counter() - self.start))
        done = self.criteria(input_ids, scores, **kwargs)
        for row, is_done in enumerate(done.tolist() if self.criteria else ()):  # a GPU is not waited for in vain
            if is_done:
                self.ends.setdefault(row, input_ids.shape[1])
        return done


@contextmanager
def peak_of(model: PreTrainedModel) -> Iterator[list[int]]:
    """A list that gets the peak memory of a model's GPU, in bytes beyond what was allocated before; empty on a CPU."""
    peak, device = list[int](), model.device
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak.append(torch.cuda.max_memory_allocated(device) - before)
