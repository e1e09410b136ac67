"""The most confident paths of a drafter that guesses a level of a tree at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..interfaces import Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .levels import Levels
from .stepwise import Stepwise
from .wrapped import WrappedDrafter


class Beams(WrappedDrafter):
    """Proposes the most confident nodes of a tree that grows by beams; the number of draft tokens is that of its nodes.

    Li et al. 2024, EAGLE-2 (arXiv 2406.16858), with any drafter that scores a level at a time: a draft model, a DFlash block.
    No chance is involved, so that it suits greedy and reproducible calls. Other sampled ones get the chain of the other drafter
    by default, for its distributions make block verification keep more; `rule="sampled"` takes trees there, too.

    It is that chain as well where another part of the call takes chains only, where a processor with a memory of its own would
    have to be copied for each node, and where a schedule ends drafts early.

    Args:
        drafter: scores the levels.
        top_k: candidates after each node, and nodes of each level that are expanded (EAGLE's and SGLang's `topk`).
        depth: the longest path: each level takes a pass of a draft model.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, drafter: Stepwise, top_k: int = 4, depth: int = 5):
        for name, value in (("top_k", top_k), ("depth", depth)):
            if value < 1:
                raise ValueError(f"`{name}={value}` drafts nothing: give 1 or more.")
        super().__init__(drafter)
        self.stepwise, self.top_k, self.depth = drafter, top_k, depth
        self.branches = drafter.scores_levels
        self.expanded_as: Tensor | None = None

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        self.expanded_as = None
        is_drawn = sampler.keeps_draft_probs and not sampler.one_hot_proposals
        if is_drawn or not self.may_branch or not sampler.drafts_trees or schedule.may_stop:
            return super().propose(batch, num_tokens, schedule, sampler)
        depth = max(self.stepwise.limit(batch, [min(n, self.depth) for n in num_tokens]))
        if depth == 0:
            return Draft.empty(batch)
        scores = sampler.draft_scores(batch, self.stepwise.step(batch, 0), 0)
        levels = Levels(self.top_k, sampler.confidences(scores[:, None], 0))
        for ahead in range(1, depth):
            width = levels.expand()
            batch.put(levels.expanded_tokens, tree=levels.expanded_tree)
            end = levels.expanded.shape[1]
            scores = sampler.level_scores(batch, self.stepwise.level(batch, end, width), end - width)
            levels.add(sampler.confidences(scores, ahead))
        tokens, parents, confidences, self.expanded_as = levels.best(max(num_tokens))
        is_possible = confidences > -torch.inf  # by the processors
        limits = uploaded(num_tokens, tokens.device).minimum(is_possible.sum(1))
        return Draft(tokens, None, limits, parents, depth)

    def rollback(self, batch: Batch) -> None:
        if batch.path is not None and self.expanded_as is not None:
            batch = batch.as_fed(self.expanded_as)
        super().rollback(batch)
