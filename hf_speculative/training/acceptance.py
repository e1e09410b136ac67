"""Measure the acceptance of a draft in training: a short evaluation on held-out prompts, greedy and as in use."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from ..call.prompts import settings_of_rows
from ..call.statistics import Statistics
from ..measuring.decoder import Decoder
from ..measuring.drafts import NamedDraft
from ..measuring.inputs import Prompts
from ..measuring.plan import journal_of
from ..measuring.processes import Processes
from ..measuring.results import Evaluation
from ..measuring.runner import Runner
from ..measuring.settings import Setting
from .sampling_params import SamplingParams

#: ways to decode that are measured
GREEDY, SAMPLED = "greedy", "sampled"


@dataclass
class Meter:
    """Measure acceptance, always in the same way.

    Attributes:
        prompts: ids of the held-out prompts.
        use: how the target will be sampled from; greedy decoding is measured in any case.
        num_draft_tokens: in every round.
        most_seconds: of one way to decode: batches that come later are left out, but for the first.
        processes: share the batches.
        ends: keywords of `generate` about the tokens that end an answer.
    """

    prompts: list[list[int]]
    use: SamplingParams
    num_draft_tokens: int = 5
    max_new_tokens: int = 64
    batch_size: int = 8
    seed: int = 0
    most_seconds: float = math.inf
    processes: Processes = field(default_factory=Processes)
    ends: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ways(self) -> dict[str, float]:
        """The temperature of each way to decode that is measured."""
        return {GREEDY: 0.0} if self.use.temperature == 0 else {GREEDY: 0.0, SAMPLED: self.use.temperature}

    @property
    def main(self) -> str:
        """The way that decides which checkpoint is best: that of use."""
        return list(self.ways)[-1]

    def setting(self, way: str) -> Setting:
        """What an evaluation calls a way to decode."""
        return Setting(draft_model="draft", num_draft_tokens=self.num_draft_tokens, temperature=self.ways[way])

    @torch.no_grad()
    def measure(self, target: PreTrainedModel, draft: Any) -> Evaluation:
        """Each way to decode, without plain decoding. Draws that training makes later stay the same.

        Args:
            draft: a model, or a source of drafts, as `draft_model=` takes it.

        Raises:
            RuntimeError: a batch could not be decoded.
        """
        sampling = {"top_k": self.use.top_k, "top_p": self.use.top_p} if self.use.temperature else {}
        kwargs = settings_of_rows(target, None, {"max_new_tokens": self.max_new_tokens, **sampling, **self.ends})
        decoder = Decoder(target, None, {"draft": NamedDraft(draft)}, kwargs, self.seed)
        settings = [self.setting(way) for way in self.ways]
        journal = journal_of(decoder, settings, self.batch_size, num_rows=len(self.prompts), processes=self.processes)
        batches = Prompts(dict(enumerate(self.prompts))).batches(self.batch_size)
        for setting in settings:
            runner, started = Runner(decoder, [setting], journal), time.monotonic()
            for batch in range(self.processes.rank, len(batches), self.processes.count):
                runner.run(batch, *batches[batch])
                if time.monotonic() - started > self.most_seconds:
                    break
        for other in self.processes.gather([journal]):
            journal.merge(other)
        for row in journal.bad_rows.values():
            raise RuntimeError(f"acceptance could not be measured: {row.message}.")
        return Evaluation(journal)

    def counts(self, evaluation: Evaluation, way: str) -> Statistics:
        """What was counted in one way to decode."""
        counts = evaluation.totals(self.setting(way)).statistics
        assert counts is not None  # no way is plain decoding
        return counts

    def __call__(self, target: PreTrainedModel, draft: Any, prefix: str = "eval") -> dict[str, float]:
        """The same as metrics of a Trainer: for each way the acceptance length and the rate at each position."""
        found = self.measure(target, draft)
        metrics = {f"{prefix}_acceptance_length": self.counts(found, self.main).mean_acceptance_length}
        for way in self.ways:
            counts = self.counts(found, way)
            metrics[f"{prefix}_{way}_acceptance_length"] = counts.mean_acceptance_length
            metrics[f"{prefix}_{way}_num_tokens"] = counts.num_new_tokens
            rates = [*counts.per_position_acceptance_rate, *[0.0] * self.num_draft_tokens]
            for position, rate in enumerate(rates[: self.num_draft_tokens], start=1):
                metrics[f"{prefix}_{way}_position_{position}"] = rate
        return metrics
