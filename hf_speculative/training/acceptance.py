"""The acceptance of a draft in training: the real loop on held-out prompts, greedy and as in use."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from transformers import PreTrainedModel

from ..batches import generate_batches
from ..call.statistics import RowStatistics
from ..models import device_of
from .sampling_params import SamplingParams

#: ways to decode that are measured
GREEDY, SAMPLED = "greedy", "sampled"


@dataclass
class Meter:
    """Measures acceptance, always in the same way.

    Attributes:
        prompts: ids of the held-out prompts.
        use: how the target will be sampled from; greedy decoding is measured in any case.
        num_draft_tokens: in every round.
        most_seconds: of one way to decode: prompts that come later are left out, but for the first.
    """

    prompts: list[list[int]]
    use: SamplingParams
    num_draft_tokens: int = 5
    max_new_tokens: int = 64
    batch_size: int = 8
    seed: int = 0
    most_seconds: float = math.inf

    @property
    def ways(self) -> dict[str, SamplingParams]:
        """Each way to decode that is measured."""
        ways = {GREEDY: SamplingParams(temperature=0)}
        return ways if self.use.temperature == 0 else ways | {SAMPLED: self.use}

    @property
    def main(self) -> str:
        """The way that decides which checkpoint is best: that of use."""
        return list(self.ways)[-1]

    def measure(self, target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, RowStatistics]:
        """Counts by way. Draws that training makes later stay the same. Several processes share the prompts."""
        devices = [device_of(target)] if device_of(target).type == "cuda" else []
        rank, count = _place()
        found = {}
        for name, use in self.ways.items():
            total = RowStatistics()
            with torch.random.fork_rng(devices), torch.no_grad():
                torch.manual_seed(self.seed + rank)
                completions = generate_batches(
                    target,
                    self.prompts[rank::count],
                    batch_size=self.batch_size,
                    draft_model=draft,
                    num_draft_tokens=self.num_draft_tokens,
                    max_new_tokens=self.max_new_tokens,
                    **use.generate_kwargs,
                )
                started = time.monotonic()
                with closing(completions):
                    for completion in completions:
                        total += completion.statistics
                        if time.monotonic() - started > self.most_seconds:
                            break
            found[name] = _summed(total)
        return found

    def __call__(self, target: PreTrainedModel, draft: PreTrainedModel, prefix: str = "eval") -> dict[str, float]:
        """The same as metrics of a Trainer: for each way the acceptance length and the rate at each position."""
        found = self.measure(target, draft)
        metrics = {f"{prefix}_acceptance_length": found[self.main].mean_acceptance_length}
        for name, counts in found.items():
            metrics[f"{prefix}_{name}_acceptance_length"] = counts.mean_acceptance_length
            for position, rate in enumerate(by_position(counts, self.num_draft_tokens), start=1):
                metrics[f"{prefix}_{name}_position_{position}"] = rate
        return metrics


def by_position(counts: RowStatistics, num_positions: int) -> list[float]:
    """The share of rounds that kept the draft up to each position."""
    rates = counts.per_position_acceptance_rate
    return [*rates, *[0.0] * (num_positions - len(rates))][:num_positions]


def _place() -> tuple[int, int]:
    """Which of how many processes this is."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _summed(counts: RowStatistics) -> RowStatistics:
    """Over all processes."""
    _, count = _place()
    if count == 1:
        return counts
    gathered: list[Any] = [None] * count
    distributed.all_gather_object(gathered, counts)
    total = RowStatistics()
    for one in gathered:
        total += one
    return total
