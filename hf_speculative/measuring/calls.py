"""Time one call of `generate`, or of a rival: time to the first tokens, total time, peak memory."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..call.output import Rows
from ..call.statistics import Statistics
from ..generation import generate_rounds
from ..hf_compat import compile_on_all_devices
from ..models.shallow import exchanged
from ..reports.timing import timed, wait_for
from .settings import NamedDraft


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
    wait_for(target.device)
    clock = Clock(call["stopping_criteria"], width)
    call = call | {"stopping_criteria": StoppingCriteriaList([clock])}
    ids, seconds = timed(partial(generate, **call), target.device)
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
    """Combine `criteria`, and record the times of calls, from now on, and the width at which each row ended.

    Args:
        width: of the prompts, padding included.
    """

    def __init__(self, criteria: list[StoppingCriteria], width: int):
        self.criteria, self.width = StoppingCriteriaList(criteria), width
        self.ends: dict[int, int] = {}
        self.start = time.perf_counter()
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


@dataclass(frozen=True)
class Rival:
    """A way to decode that is not ours.

    Attributes:
        name: what `Setting(rival=...)` and the tables call it.
        decode: takes the keywords of a `generate` call: `input_ids` and `attention_mask` of a batch, all stopping criteria, and
            `num_draft_tokens` where the setting names it. It decodes the prompts and says when.
        max_batch_size: the largest batch it takes.
    """

    name: str
    decode: Callable[[dict[str, Any]], Decoded]
    max_batch_size: int | None = None


def assisted(target: PreTrainedModel, draft: NamedDraft, name: str = "assisted") -> Rival:
    """transformers' assisted generation with a draft, at the setting's draft length, else by its own defaults."""

    def decode(call: dict[str, Any]) -> Decoded:
        helper = exchanged(draft.model, {})  # its settings are read from, and written to, the draft's generation config
        helper.generation_config = copy.deepcopy(draft.model.generation_config)
        if (length := call.pop("num_draft_tokens", None)) is not None:
            constant = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
            helper.generation_config.update(num_assistant_tokens=length, **constant)
        own = {} if draft.tokenizer is None else {"assistant_tokenizer": draft.tokenizer}
        passes: list[PreTrainedModel] = []
        # a draft of the target's first layers is a shallow copy, which has the same hooks
        with target.register_forward_pre_hook(lambda module, _: passes.append(module) if module is target else None):
            call |= {"assistant_model": helper, **own}
            decoded = timed_generate(_theirs(target), target, call)
        return replace(decoded, num_target_passes=len(passes))

    return Rival(name, decode, max_batch_size=1)


def compiled(target: PreTrainedModel, name: str = "plain, compiled") -> Rival:
    """Plain decoding by transformers with a static cache and a compiled forward."""

    def decode(call: dict[str, Any]) -> Decoded:
        settings = CompileConfig(mode="reduce-overhead" if target.device.type == "cuda" else "default")
        compile_on_all_devices(settings)  # transformers compiles by itself on a GPU only
        call |= {"cache_implementation": "static", "compile_config": settings}
        return timed_generate(_theirs(target), target, call)

    return Rival(name, decode)


def _theirs(target: PreTrainedModel) -> Callable[..., Any]:
    """The `generate` of the target's class, whatever is attached."""
    return partial(type(target).generate, target)
