"""Plain against speculative decoding on the same prompts: running both, adding up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from .. import theory
from ..benchmark.passes import timed
from ..call.output import Rows
from ..call.statistics import RowStatistics, Statistics, record
from ..generation import generate_rounds
from ..reports.speedup import Speedup, Work, quartiles
from ..tokenizers.pieces import Pieces


@dataclass
class Comparison:
    """Plain against speculative decoding on the same prompts.

    Attributes:
        num_identical: prompts whose text is plain decoding's.
        pairs: the speculative and the plain `generate` call of each batch, as often as it was repeated.
        statistics: of all speculative calls.
    """

    num_prompts: int = 0
    num_identical: int = 0
    pairs: list[tuple[Work, Work]] = field(default_factory=list)
    num_plain_passes: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def speedup(self) -> Speedup | None:
        """Of decoding the same prompts, in tokens per second."""
        return Speedup.of(self.pairs, quartiles)

    def plain_total(self, name: str) -> Any:
        """A field of all plain calls' work added up."""
        return sum(getattr(plain, name) for _, plain in self.pairs)

    def speculative_total(self, name: str) -> Any:
        return sum(getattr(own, name) for own, _ in self.pairs)

    def predicted_speedup(self, num_draft_tokens: int | None) -> float | None:
        """Leviathan et al. 2023, Theorem 3.8, from the measured acceptance rate and the measured cost of a draft step.

        It is about drafts of one length: `None` where the length was chosen each round, and where nothing was drafted.
        """
        stats = self.statistics
        if num_draft_tokens is None or not stats.num_draft_tokens:
            return None
        draft_step = stats.seconds["draft"] / max(1, stats.num_draft_forwards)
        cost = draft_step / (self.plain_total("seconds") / self.num_plain_passes)
        return theory.walltime_factor(stats.token_acceptance_rate, num_draft_tokens, cost)

    def to_dict(self, num_draft_tokens: int | None, sampled: bool) -> dict[str, Any]:
        """Ready for JSON."""
        statistics = self.statistics.to_dict()
        del statistics["rows"]
        return {
            "num_prompts": self.num_prompts,
            "num_identical": None if sampled else self.num_identical,
            "speedup": self.speedup and self.speedup.to_dict(),
            "predicted_speedup": self.predicted_speedup(num_draft_tokens),
            "num_plain_target_forwards": self.num_plain_passes,
            "statistics": statistics,
            "pairs": [{"speculative": asdict(own), "plain": asdict(plain)} for own, plain in self.pairs],
        }


@dataclass
class Runner:
    """A pair, its settings, and both ways to decode with it.

    Attributes:
        seed: set before each run.
        kwargs: options of both `generate` calls; `speculative_kwargs` those of the speculative one alone.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    seed: int
    kwargs: dict[str, Any]
    speculative_kwargs: dict[str, Any]

    def __post_init__(self):
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.target.config.is_encoder_decoder:
            raise ValueError(
                f"the target is a {type(self.target).__name__}: this comparison takes decoder-only models."
            )

    def stream(self, prompt: str) -> Iterator[tuple[str, bool]]:
        """Speculative decoding of one prompt: the text as it comes, each piece with whether the draft had guessed it."""
        inputs = self._inputs([prompt])
        pieces = Pieces(self.tokenizer.decode, before=inputs["input_ids"][0].tolist())
        set_seed(self.seed)
        kwargs = inputs | self._both_kwargs() | self._draft_kwargs()
        with closing(generate_rounds(self.target, **kwargs)) as rounds:
            for round, _ in rounds:
                for index, token in enumerate(round.tokens[0]):
                    is_last = round.done[0] and index == len(round.tokens[0]) - 1
                    yield pieces.add(token, is_last), index < round.num_from_draft[0]

    def warm_up(self, prompts: list[str]) -> None:
        """Both ways, in full: what a first call measures and sets up may depend on how long it gets."""
        inputs = self._inputs(prompts)
        self._plain(inputs)
        self._speculative(inputs)

    def compare(self, prompts: list[str], comparison: Comparison, again: bool = False) -> list[dict[str, Any]]:
        """Both ways once on one batch, added to `comparison`: each time the other one first.

        Args:
            again: a further repeat of prompts that were counted.

        Returns:
            For each prompt the pieces of its text, each with whether the draft had guessed it, and its JSON fields.
        """
        inputs = self._inputs(prompts)
        width = inputs["input_ids"].shape[1]
        if len(comparison.pairs) % 2:
            speculative, plain = self._speculative(inputs), self._plain(inputs)
        else:
            plain, speculative = self._plain(inputs), self._speculative(inputs)
        expected = [self._until_end(row) for row in plain.result[:, width:].tolist()]
        statistics, num_steps = speculative.statistics, plain.result.shape[1] - width
        new, survival = speculative.result.new_tokens, speculative.result.survival
        comparison.pairs.append(
            (
                Work(sum(map(len, new)), speculative.seconds, statistics.num_rounds),
                Work(sum(map(len, expected)), plain.seconds, num_steps * len(prompts)),
            )
        )
        comparison.num_plain_passes += num_steps
        comparison.statistics += statistics
        if not again:
            comparison.num_prompts += len(prompts)
            comparison.num_identical += sum(ours == theirs for ours, theirs in zip(new, expected, strict=True))
        prompt_ids = inputs["input_ids"].tolist()
        from_draft = [[chance == chance for chance in row] for row in survival]
        return [self._row(*row) for row in zip(prompt_ids, new, expected, from_draft, statistics.rows, strict=True)]

    def _row(
        self, prompt_ids: list[int], new: list[int], expected: list[int], from_draft: list[bool], counts: RowStatistics
    ) -> dict[str, Any]:
        pieces = Pieces(self.tokenizer.decode, before=prompt_ids)
        added = [pieces.add(token, is_last=end == len(new)) for end, token in enumerate(new, start=1)]
        as_json = {"text": self.tokenizer.decode(new), "identical": new == expected, "statistics": counts.to_dict()}
        return {"pieces": list(zip(added, from_draft, strict=False)), "json": as_json}

    def _inputs(self, prompts: list[str]) -> dict[str, Tensor]:
        encoded = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.target.device)
        # Some tokenizers add token types, which decoder-only models do not take.
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def _both_kwargs(self) -> dict[str, Any]:
        return self.kwargs | {"pad_token_id": self.tokenizer.pad_token_id}

    def _draft_kwargs(self) -> dict[str, Any]:
        return self.speculative_kwargs | {"draft_model": self.draft}

    def _plain(self, inputs: dict[str, Tensor]) -> _Timed:
        return self._timed(lambda: self.target.generate(**inputs, **self._both_kwargs()))

    def _speculative(self, inputs: dict[str, Tensor]) -> _Timed:
        def decode() -> Rows:
            rows = Rows(len(inputs["input_ids"]))
            for round, _ in generate_rounds(self.target, **inputs, **self._both_kwargs(), **self._draft_kwargs()):
                rows.follow(round)
            return rows

        return self._timed(decode)

    def _timed(self, call: Callable[[], Any]) -> _Timed:
        set_seed(self.seed)
        results: list[Any] = []
        with record() as statistics:
            seconds = timed(lambda: results.append(call()), self.target.device)
        return _Timed(results[0], seconds, statistics)

    def _until_end(self, tokens: list[int]) -> list[int]:
        """Plain output without the padding after its end token."""
        end = self.target.generation_config.eos_token_id
        ends = set(end) if isinstance(end, list) else {end}
        first = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        return tokens[: first + 1]


@dataclass(frozen=True)
class _Timed:
    """What one call gave, how long it took, and what it counted if it was speculative."""

    result: Any
    seconds: float
    statistics: Statistics
