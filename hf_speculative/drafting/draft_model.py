"""A small model guesses, one token at a time.

Each proposal is drawn from the draft's own processed distribution, and that very distribution is handed to the rule.
"""

from __future__ import annotations

from torch import Tensor

from ..interfaces import CachedModel, Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .autoregressive import AutoregressiveDrafter, as_proposed


class DraftModel(AutoregressiveDrafter):
    """Drafts with a causal language model and a cache of its own.

    Args:
        model: the draft model with its cache.
        max_positions: the longest sequence the draft can take; a row beyond it is decoded plainly.
    """

    def __init__(self, model: CachedModel, max_positions: int | None = None):
        self.model = model
        self.max_positions = max_positions

    @property
    def num_forwards(self) -> int:
        return self.model.num_forwards

    @property
    def keeps_rows_together(self) -> bool:
        return self.model.keeps_rows_together

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.model.reset()

    def prefill(self, batch: Batch) -> None:
        if self._can_read(batch):
            self.model.prefill(batch)

    def _can_read(self, batch: Batch) -> bool:
        return self.max_positions is None or max(map(len, batch.history)) <= self.max_positions

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        num_tokens = self.limit(batch, num_tokens)
        settings = sampler.settings
        if not max(num_tokens) or settings is None or schedule.may_stop or not self.model.drafts_at_once(batch):
            return super().propose(batch, num_tokens, schedule, sampler)
        tokens, distributions = self.model.draft(
            batch,
            max(num_tokens),
            lambda logits, ahead: sampler.propose(sampler.draft_scores(batch, logits, ahead), ahead),
            settings,
        )
        return as_proposed(tokens, distributions, uploaded(num_tokens, tokens.device), sampler)

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        return self.model.greedy_chain(batch, num_tokens, vocab_size)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        return self.model.logits(batch, ahead=ahead, num_last=1)[:, 0]

    @property
    def scores_levels(self) -> bool:  # type: ignore[override]
        return self.model.takes_trees

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        return self.model.logits(batch, ahead=num_nodes, num_last=width)

    def rollback(self, batch: Batch) -> None:
        self.model.rollback(batch)

    def select(self, indices: list[int]) -> None:
        self.model.select(indices)

    def release(self) -> None:
        self.model.release()

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self._can_read(newcomers):
            self.model.admit(newcomers, lanes)
        else:
            self.model.forget(lanes)

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        if self.max_positions is None:
            return num_tokens
        # The last proposal is never fed, so n proposals need length + n - 1 positions.
        lengths = [len(history) for history in batch.history]
        if max(lengths) > self.max_positions:  # a longer row could not even be caught up: the whole batch goes plain
            return [0] * len(num_tokens)
        longest = self.max_positions + 1 - max(lengths)
        return [min(n, longest) for n in num_tokens]
