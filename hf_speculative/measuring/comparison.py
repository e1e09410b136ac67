"""Plain against speculative decoding on the same prompts: running both and adding up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import theory
from ..call.prompts import prompt_ids, settings_of_rows
from ..call.statistics import Statistics
from ..tokenizers.pieces import Pieces
from .decoder import Decoder
from .drafts import NamedDraft
from .journal import Call, Row
from .settings import Setting
from .speedup import Speedup, Work, quartiles


@dataclass
class Comparison:
    """Plain against speculative decoding on the same prompts.

    Attributes:
        setting: how tokens are drafted.
        num_identical: prompts whose text equals plain decoding's.
        pairs: the speculative and the plain `generate` call of each batch, as often as it was repeated.
        statistics: of all speculative calls.
    """

    setting: Setting
    num_prompts: int = 0
    num_identical: int = 0
    pairs: list[tuple[Work, Work]] = field(default_factory=list)
    num_plain_passes: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def add(self, own: Call, plain: Call, again: bool = False) -> None:
        """A batch decoded both ways; `again` for prompts that were counted."""
        assert own.statistics is not None
        self.pairs.append((own.work, plain.work))
        self.num_plain_passes += plain.num_target_passes
        self.statistics += own.statistics
        if not again:
            self.num_prompts += len(own.rows)
            self.num_identical += sum(a.new_ids == b.new_ids for a, b in zip(own.rows, plain.rows, strict=True))

    @property
    def speedup(self) -> Speedup | None:
        """Ratio of tokens per second, speculative over plain."""
        return Speedup.of(self.pairs, quartiles, is_bounded=not self.setting.is_compiled)

    def plain_total(self, name: str) -> Any:
        """The sum of a field over all plain calls."""
        return sum(getattr(plain, name) for _, plain in self.pairs)

    def speculative_total(self, name: str) -> Any:
        return sum(getattr(own, name) for own, _ in self.pairs)

    @property
    def predicted_speedup(self) -> float | None:
        """Leviathan et al. 2023, Theorem 3.8, from the measured acceptance rate and the measured cost of a draft step.

        It holds for chains of one length, a pass of the draft for each token: `None` if the length was chosen each round, if
        nothing was drafted, or without passes.
        """
        stats, num_draft_tokens = self.statistics, self.setting.num_draft_tokens
        if num_draft_tokens is None or not stats.num_draft_forwards:
            return None
        draft_step = stats.seconds["draft"] / stats.num_draft_forwards
        cost = draft_step / (self.plain_total("seconds") / self.num_plain_passes)
        return theory.walltime_factor(stats.token_acceptance_rate, num_draft_tokens, cost)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        statistics = self.statistics.to_dict()
        del statistics["rows"]
        return {
            "num_prompts": self.num_prompts,
            "num_identical": self.num_identical if self.setting.is_exact else None,
            "speedup": self.speedup and self.speedup.to_dict(),
            "predicted_speedup": self.predicted_speedup,
            "num_plain_target_forwards": self.num_plain_passes,
            "statistics": statistics,
            "pairs": [{"speculative": asdict(own), "plain": asdict(plain)} for own, plain in self.pairs],
        }


@dataclass(frozen=True)
class Piece:
    """A token's text: when it came, in seconds since the call began, and whether the draft had guessed it."""

    seconds: float
    text: str
    is_from_draft: bool


class Runner:
    """A pair, and both ways to decode with it.

    Args:
        draft, draft_tokenizer: what a setting with a draft model calls `draft`.
        setting: how tokens are drafted.
        seed: random seed, set before each run.
        **kwargs: options of both `generate` calls.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        draft_tokenizer: PreTrainedTokenizerBase | None,
        setting: Setting,
        seed: int = 0,
        **kwargs,
    ):
        if target.config.is_encoder_decoder:
            raise ValueError(
                f"the target is of type {type(target).__name__}: this comparison takes decoder-only models."
            )
        drafts = {"draft": NamedDraft("draft", "", draft, draft_tokenizer)} if draft is not None else {}
        self.tokenizer, self.setting = tokenizer, setting
        self.decoder = Decoder(target, tokenizer, drafts, settings_of_rows(target, tokenizer, kwargs), seed)
        self.decoder.check(setting)

    def stream(self, prompt: str) -> Iterator[tuple[str, bool]]:
        """Speculative decoding of one prompt: the text as it comes, each piece with whether the draft had guessed it."""
        (ids,) = self._ids([prompt])
        self.decoder.kept.clear()
        pieces = Pieces(self.tokenizer.decode, before=ids)
        with closing(self.decoder.rounds(self.setting, 0, [ids])) as rounds:
            for round, _ in rounds:
                for index, token in enumerate(round.tokens[0]):
                    is_last = round.done[0] and index == len(round.tokens[0]) - 1
                    yield pieces.add(token, is_last), index < round.num_from_draft[0]

    def timelines(self, prompt: str) -> tuple[list[Piece], list[Piece]]:
        """How the text of one prompt comes, plainly and speculatively."""
        (ids,) = self._ids([prompt])
        pieces, arrivals = Pieces(self.tokenizer.decode, before=ids), self.decoder.plain_arrivals(self.setting, ids)
        plain = [Piece(seconds, pieces.add(token, False), False) for token, seconds in arrivals]
        start = time.perf_counter()
        return plain, [Piece(time.perf_counter() - start, *piece) for piece in self.stream(prompt)]

    def warm_up(self, prompts: list[str]) -> None:
        """Decodes both ways at full length: what a first call measures and sets up may depend on the length."""
        for setting in (self.setting.baseline, self.setting):
            self._decode(setting, self._ids(prompts))

    def compare(self, prompts: list[str], comparison: Comparison, again: bool = False) -> list[dict[str, Any]]:
        """Decodes one batch both ways, in alternating order, and adds it to `comparison`.

        Args:
            again: a repeat of prompts that were counted already.

        Returns:
            For each prompt the pieces of its text, each with whether the draft had guessed it, and its JSON fields.
        """
        ids = self._ids(prompts)
        settings = [self.setting.baseline, self.setting]
        if len(comparison.pairs) % 2:
            settings.reverse()
        calls = {setting: self._decode(setting, ids) for setting in settings}
        own, plain = calls[self.setting], calls[self.setting.baseline]
        comparison.add(own, plain, again)
        return list(map(self._shown, ids, own.rows, plain.rows))

    def _shown(self, prompt: list[int], own: Row, plain: Row) -> dict[str, Any]:
        pieces, new, counts = Pieces(self.tokenizer.decode, before=prompt), own.new_ids, own.statistics
        added = [pieces.add(token, is_last=end == len(new)) for end, token in enumerate(new, start=1)]
        from_draft = [chance is not None for chance in own.acceptance_prob]
        text, is_identical = self.tokenizer.decode(new), new == plain.new_ids
        as_json = {"text": text, "identical": is_identical, "statistics": counts and counts.to_dict()}
        return {"pieces": list(zip(added, from_draft, strict=True)), "json": as_json}

    def _ids(self, prompts: list[str]) -> list[list[int]]:
        return [prompt_ids(text, i, self.decoder.target, self.tokenizer) for i, text in enumerate(prompts)]

    def _decode(self, setting: Setting, prompts: list[list[int]]) -> Call:
        self.decoder.kept.clear()  # of a text that was decoded before, drafts could be copied
        return self.decoder.decode(setting, 0, list(range(len(prompts))), prompts)
