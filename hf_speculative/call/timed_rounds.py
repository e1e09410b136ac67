"""Whole rounds of the loop itself, run for their time alone: nothing the call will use is touched, no draft token is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..drafting.wrapped import WrappedDrafter
from ..interfaces import CachedModel, Drafter, Rule, Sampler, Schedule
from ..loop import speculate
from ..sampling.stopping import CriteriaStopping
from ..types import Batch, Draft, Verdict
from .timings import Budget


class TimedRounds:
    """The loop itself, run on `batch` a round at a time, on the time of `budget`."""

    def __init__(
        self, batch: Batch, target: CachedModel, drafter: Drafter, rule: Rule, sampler: Sampler, budget: Budget
    ):
        self.script, self.budget, self.device = _Script(), budget, batch.tokens.device
        stopping = CriteriaStopping([], len(batch.rows))
        self.rounds = speculate(batch, target, _Filled(drafter), _KeepNothing(rule), self.script, sampler, stopping)
        self.close = self.rounds.close
        budget.lap()

    def seconds_of_next(self, num_tokens: int, num_levels: int | None = None, is_spent: bool = True) -> float:
        """What a round takes that drafts `num_tokens` a row, a tree of so many levels, 0 for a chain, if that can be said."""
        self.script.num_tokens, self.script.levels = num_tokens, num_levels
        next(self.rounds)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.budget.lap(is_spent)

    def compile(self, lengths: Sequence[int]) -> None:
        """Each kind of round once: whoever asks for compiled passes asks for that time, now or in the call."""
        for n in (0, *lengths):
            self.seconds_of_next(n, is_spent=False)


class _Script(Schedule):
    """As many tokens as it was told last."""

    num_tokens = 0
    levels: int | None = None

    def plan(self, batch: Batch) -> list[int]:
        return [self.num_tokens] * len(batch.rows)

    def num_levels(self, batch: Batch) -> int | None:
        return self.levels


class _Filled(WrappedDrafter):
    """A drafter's proposals, filled up to the length asked for: a lookup that finds nothing says nothing about costs."""

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        draft = self.drafter.propose(batch, num_tokens, schedule, sampler)
        missing = max(num_tokens) - draft.width
        if missing <= 0:
            return draft
        probs = draft.probs
        if probs is not None:
            probs = functional.pad(probs, (0, 0, 0, missing), value=1 / probs.shape[2])
        parents = draft.parents
        if self.drafter.may_branch and schedule.num_levels(batch) != 0:
            known = torch.arange(-1, draft.width - 1, device=draft.tokens.device).expand_as(draft.tokens)
            parents = functional.pad(known if parents is None else parents, (0, missing), value=-1)
        tokens = functional.pad(draft.tokens, (0, missing))
        return Draft(tokens, probs, torch.full_like(draft.num_tokens, tokens.shape[1]), parents, draft.depth)


class _KeepNothing(Rule):
    """Takes a rule's time and keeps none of the draft."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        return Verdict(torch.zeros_like(verdict.num_accepted), verdict.next_token, verdict.acceptance_prob)
