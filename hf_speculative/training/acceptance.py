"""Measure the acceptance of a draft in training: a short evaluation on held-out prompts, greedy and as in use."""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..batches import generate_batches
from ..call.statistics import Statistics
from ..distillation.sampling_params import SamplingParams
from ..measuring.plan import Processes
from ..models.model_state import alone
from .settings import Settings

#: ways to decode that are measured
GREEDY, SAMPLED = "greedy", "sampled"


@dataclass
class Meter:
    """Measure acceptance, always in the same way.

    Attributes:
        prompts: ids of the held-out prompts.
        settings: of the run, among them how the target will be sampled from; greedy decoding is measured in any case.
        num_draft_tokens: in every round.
        most_seconds: of one way to decode: batches that come later are left out, but for the first.
        processes: share the batches.
        ends: keywords of `generate` about the tokens that end an answer.
    """

    prompts: list[list[int]]
    settings: Settings
    num_draft_tokens: int = 5
    most_seconds: float = math.inf
    processes: Processes = field(default_factory=Processes)
    ends: dict[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self, target: PreTrainedModel, draft: Any, use: SamplingParams) -> Statistics:
        """What was counted over all prompts in one way to decode. Draws that training makes later stay the same.

        Args:
            draft: a model, or a source of drafts, as `draft_model=` takes it.
        """
        drafting = {"draft_model": draft, "num_draft_tokens": self.num_draft_tokens}
        most_new, size, seed = min(64, self.settings.max_new_tokens), self.settings.batch_size, self.settings.seed
        drafting |= {"num_assistant_tokens_schedule": "constant", "max_new_tokens": most_new}
        counted, started = Statistics(), time.monotonic()
        with alone(target, {}, seed):
            for first in range(self.processes.rank * size, len(self.prompts), self.processes.count * size):
                torch.manual_seed(seed + first // size)
                batch = self.prompts[first : first + size]
                options = drafting | use.generate_kwargs | self.ends
                for row in generate_batches(target, batch, batch_size=size, **options):
                    counted += row.statistics
                if time.monotonic() - started > self.most_seconds:
                    break
        total = Statistics()
        for of_process in self.processes.gather([counted]):
            total += of_process
        return total

    def __call__(self, target: PreTrainedModel, draft: Any, only_use: bool = False) -> dict[str, float]:
        """Metrics of a Trainer: for each way the acceptance length and the rate at each position.

        Args:
            only_use: leave out greedy decoding where the target is sampled from.
        """
        sampled = self.settings.use
        ways = {SAMPLED: sampled} if sampled.temperature else {}
        ways = ways if ways and only_use else {GREEDY: replace(sampled, temperature=0.0)} | ways
        metrics: dict[str, float] = {}
        for way, use in ways.items():
            counts = self.measure(target, draft, use)
            metrics["eval_acceptance_length"] = counts.mean_acceptance_length  # that of use comes last
            metrics[f"eval_{way}_acceptance_length"] = counts.mean_acceptance_length
            metrics[f"eval_{way}_num_tokens"] = counts.num_new_tokens
            rates = [*counts.per_position_acceptance_rate, *[0.0] * self.num_draft_tokens]
            for position, rate in enumerate(rates[: self.num_draft_tokens], start=1):
                metrics[f"eval_{way}_position_{position}"] = rate
        return metrics
