"""One call of `generate`, timed: when its first tokens came, when it ended, and what memory it took."""

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
    """What a way to decode made of a batch of prompts.

    Attributes:
        new_ids: of each row; what follows an end token is padding.
        seconds: wall time until all rows were done.
        first_seconds: until the first new tokens were there; `None` if unknown.
        num_first_tokens: how many these were, of all rows.
        num_target_passes: forward passes of the target; 0 if unknown.
        steps: numbers of new tokens that all rows had, each with the seconds after which they had them.
    """

    new_ids: list[list[int]]
    seconds: float
    first_seconds: float | None = None
    num_first_tokens: int = 0
    num_target_passes: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)

    def seconds_until(self, num_tokens: int) -> float:
        """When a row had so many new tokens."""
        return next((seconds for num, seconds in self.steps if num >= num_tokens), self.seconds)


def timed_generate(
    generate: Callable[..., Tensor],
    target: PreTrainedModel,
    call: dict[str, Any],
    num_passes: Callable[[], int] = lambda: 0,
) -> Decoded:
    """Call a `generate` that returns ids alone, timed.

    Args:
        call: its keywords, with all stopping criteria as `stopping_criteria`.
        num_passes: the target passes, counted by the caller.
    """
    width = 1 if target.config.is_encoder_decoder else call["input_ids"].shape[1]
    clock = Clock(call["stopping_criteria"], width)

    def run() -> Tensor:
        clock.start = time.perf_counter()
        return generate(**call | {"stopping_criteria": StoppingCriteriaList([clock])})

    ids, seconds = timed(run, target.device)
    rows = enumerate(ids[:, width:].tolist())
    new_ids = [row[: int(min(len(row), clock.ends.get(index, math.inf) - width))] for index, row in rows]
    return Decoded(new_ids, seconds, clock.first_seconds, clock.num_first_tokens, num_passes(), clock.steps)


def all_rounds(target: PreTrainedModel, call: dict[str, Any]) -> tuple[Rows, Statistics, Decoded, dict[int, float]]:
    """Call our own `generate`, timed, with the seconds until each row was done. The first round is the prompts' own pass."""
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
    return rows, counts, Decoded(rows.new_tokens, seconds, *first), ends


class Clock(StoppingCriteria):
    """All of `criteria` as one, which notes when it was called, and the width at which it ended a row.

    Args:
        width: of the prompts, padding included.
    """

    def __init__(self, criteria: list[StoppingCriteria], width: int):
        self.criteria, self.width = StoppingCriteriaList(criteria), width
        self.ends: dict[int, int] = {}
        self.start, self.num_first_tokens = 0.0, 0
        self.steps: list[tuple[int, float]] = []
        self.first_seconds: float | None = None

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        if self.first_seconds is None:
            wait_for(input_ids.device)
            self.first_seconds = time.perf_counter() - self.start
            self.num_first_tokens = input_ids[:, self.width :].numel()
        self.steps.append((input_ids.shape[1] - self.width, time.perf_counter() - self.start))
        if not self.criteria:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        done = self.criteria(input_ids, scores, **kwargs)
        for row, is_done in enumerate(done.tolist()):
            if is_done:
                self.ends.setdefault(row, input_ids.shape[1])
        return done


@dataclass
class Peak:
    """The most memory that was allocated for a while, beyond what was there before; `None` where it is not counted."""

    num_bytes: int | None = None


@contextmanager
def peak_of(model: PreTrainedModel) -> Iterator[Peak]:
    """Note the peak of the memory of a model's GPU."""
    peak, device = Peak(), model.device
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
