"""Plain against speculative decoding on the same prompts: running both, adding up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from . import theory
from .generation import generate
from .statistics import Statistics, record


@dataclass
class Comparison:
    """Plain against speculative decoding on the same prompts. Times are seconds of `generate` calls, warm-up apart."""

    num_prompts: int = 0
    num_identical: int = 0
    num_plain_tokens: int = 0
    plain_seconds: float = 0.0
    num_plain_steps: int = 0
    speculative_seconds: float = 0.0
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second, each over its own tokens."""
        return self.tokens_per_second("speculative") / self.tokens_per_second("plain")

    def tokens_per_second(self, which: str) -> float:
        if which == "plain":
            return self.num_plain_tokens / self.plain_seconds
        return self.statistics.num_new_tokens / self.speculative_seconds

    def predicted_speedup(self, num_draft_tokens: int | None) -> float | None:
        """Leviathan et al. 2023, Theorem 3.8, from the measured acceptance rate and the measured cost of a draft step.

        It is about drafts of one length: `None` where the length was chosen each round.
        """
        if num_draft_tokens is None:
            return None
        stats = self.statistics
        draft_step = stats.seconds["draft"] / max(1, stats.num_draft_forwards)
        cost = draft_step / (self.plain_seconds / self.num_plain_steps)
        return theory.walltime_factor(stats.token_acceptance_rate, num_draft_tokens, cost)

    def to_dict(self, num_draft_tokens: int | None, sampled: bool) -> dict[str, Any]:
        statistics = self.statistics.to_dict()
        del statistics["rows"]
        return {
            "num_prompts": self.num_prompts,
            "plain": {"seconds": self.plain_seconds, "tokens_per_second": self.tokens_per_second("plain")},
            "speculative": {
                "seconds": self.speculative_seconds,
                "tokens_per_second": self.tokens_per_second("speculative"),
            },
            "speedup": self.speedup,
            "predicted_speedup": self.predicted_speedup(num_draft_tokens),
            "num_identical": None if sampled else self.num_identical,
            "statistics": statistics,
        }


@dataclass
class Runner:
    """A pair, its settings, and both ways to decode with it.

    Attributes:
        seed: set before either run of a batch.
        kwargs: options of both `generate` calls; `speculative_kwargs` those of the speculative one alone.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    seed: int
    kwargs: dict[str, Any]
    speculative_kwargs: dict[str, Any]

    def warm_up(self, prompt: str) -> None:
        inputs = self._inputs([prompt])
        short = self.kwargs | {"max_new_tokens": 8}
        self.target.generate(**inputs, **short)
        generate(self.target, **inputs, **short, draft_model=self.draft, **self.speculative_kwargs)

    def compare(self, prompts: list[str], comparison: Comparison) -> list[dict[str, Any]]:
        """Both ways on one batch, added to `comparison`; for each prompt its coloured text and its JSON fields."""
        inputs = self._inputs(prompts)
        width = inputs["input_ids"].shape[1]
        plain, plain_seconds = self._timed(self.target.generate, inputs)
        with record() as statistics:
            output, seconds = self._timed(
                lambda **kwargs: generate(self.target, **kwargs, return_dict_in_generate=True),
                inputs | {"draft_model": self.draft} | self.speculative_kwargs,
            )
        comparison.num_prompts += len(prompts)
        comparison.plain_seconds += plain_seconds
        comparison.speculative_seconds += seconds
        comparison.num_plain_steps += plain.shape[1] - width
        comparison.statistics += statistics
        results = []
        for row, counts in enumerate(output.statistics.rows):
            new = output.sequences[row, width : width + counts.num_new_tokens].tolist()
            expected = self._until_end(plain[row, width:].tolist())
            comparison.num_plain_tokens += len(expected)
            comparison.num_identical += new == expected
            text = Text()
            for token, from_draft in zip(new, output.from_draft[row].tolist(), strict=False):
                text.append(self.tokenizer.decode([token]), style="green" if from_draft else "bold")
            as_json = {"text": self.tokenizer.decode(new), "identical": new == expected, "statistics": counts.to_dict()}
            results.append({"text": text, "json": as_json})
        return results

    def _inputs(self, prompts: list[str]) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.target.device)
        # Some tokenizers add token types, which decoder-only models do not take.
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _timed(self, function, kwargs: dict[str, Any]):
        set_seed(self.seed)
        start = time.perf_counter()
        result = function(**kwargs, **self.kwargs, pad_token_id=self.tokenizer.pad_token_id)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    def _until_end(self, tokens: list[int]) -> list[int]:
        """Plain output without the padding after its end token."""
        end = self.target.generation_config.eos_token_id
        ends = set(end) if isinstance(end, list) else {end}
        first = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        return tokens[: first + 1]
