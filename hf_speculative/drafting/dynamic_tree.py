"""Dynamic trees of a drafter that scores a level at a time (EAGLE-2)."""

import torch
from torch import Tensor

from ..interfaces import Guesses, Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .autoregressive import AutoregressiveDrafter
from .nodes import Levels, MergedTree, as_fed
from .wrapped import WrappedDrafter

#: default numbers of candidates after a node, and of levels
DEFAULT_TOP_K, DEFAULT_DEPTH = 4, 5
#: the most guesses considered as nodes of a tree
MOST_GRAFTED = 32


class DynamicTreeDrafter(WrappedDrafter):
    """Proposes the most confident nodes of a tree that grows by beams; the number of draft tokens is that of its nodes.

    Li et al. 2024, EAGLE-2 (arXiv 2406.16858), with any drafter that scores a level at a time: a draft model, a DFlash block.
    No chance is involved, so that it suits greedy and reproducible calls. Other sampled ones get the chain of the other drafter
    by default, for its distributions make block verification keep more; `rule="sampled"` takes trees there, too.

    It is that chain as well where another part of the call takes chains only, and where a schedule ends drafts early. So it is
    with a processor that has a memory of its own, which would have to be copied for each node.

    Args:
        drafter: scores the levels.
        top_k: candidates after each node, and nodes of each level that are expanded (EAGLE's and SGLang's `topk`).
        depth: the longest path: each level takes a pass of a draft model. Where the schedule says how deep a tree is to be
            (`Schedule.num_levels`), its word counts; `None`: chains where it says nothing.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, drafter: AutoregressiveDrafter, top_k: int = DEFAULT_TOP_K, depth: int | None = DEFAULT_DEPTH):
        for name, value in (("top_k", top_k), ("depth", depth)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}={value}` drafts nothing: give 1 or more.")
        super().__init__(drafter)
        self.autoregressive, self.top_k, self.depth = drafter, top_k, depth
        self.branches = drafter.scores_levels
        self.expanded_as: Tensor | None = None
        self.merged, self.is_merged = MergedTree(), False

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        batch.grows_levels = self.may_branch
        super().begin(batch, sampler)

    def branches_with(self, sampler: Sampler) -> bool:
        is_drawn = sampler.keeps_draft_probs and not sampler.one_hot_proposals
        return self.branches and sampler.drafts_trees and not is_drawn

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return self.propose_beside(batch, num_tokens, schedule, sampler)

    def propose_beside(
        self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler, guesses: Guesses | None = None
    ) -> Draft:
        """Guesses become nodes of the tree, or make the chain one, see `united`."""
        self.expanded_as, self.is_merged = None, False
        levels = schedule.num_levels(batch)
        if levels is None:
            levels = self.depth or 0
        rooms = [min(n, room) for n, room in zip(num_tokens, batch.rooms, strict=True)]
        # Whether the sampler takes trees may change where requests have samplers of their own.
        may_grow = self.may_branch and sampler.drafts_trees and not schedule.may_stop
        guessed = guesses([min(n, MOST_GRAFTED) for n in num_tokens]) if guesses is not None and may_grow else []
        is_joined = any(row.tokens for row in guessed)
        if not may_grow or not (levels or is_joined):
            return super().propose(batch, rooms, schedule, sampler)
        top_k, levels = (self.top_k, levels) if levels else (1, max(rooms))  # a chain, which guesses make a tree
        depth = max(self.autoregressive.limit(batch, [min(levels, room) for room in rooms]))
        if depth == 0:
            return Draft.empty(batch)
        scores = sampler.draft_scores(batch, self.autoregressive.step(batch, 0), 0)
        candidates = Levels(top_k, sampler.confidences(scores[:, None], 0))
        for ahead in range(1, depth):
            width, tokens, tree = candidates.expand()
            batch.put(tokens, tree=tree)
            end = tokens.shape[1]
            scores = sampler.level_scores(batch, self.autoregressive.level(batch, end, width), end - width + 1)
            candidates.add(sampler.confidences(scores, ahead))
        if is_joined:
            draft, self.expanded_as = self.merged.draft(batch, candidates, guessed, num_tokens, schedule)
            self.is_merged = True
            return draft
        tokens, parents, confidences, self.expanded_as = candidates.best(max(num_tokens))
        is_possible = confidences > -torch.inf  # by the processors
        limits = uploaded(num_tokens, tokens.device).minimum(is_possible.sum(1))
        if not schedule.chooses_nodes:
            return Draft(tokens, None, limits, parents, depth)
        # Read by the host, beside the one read of each round: how many nodes are worth their time.
        read = torch.cat([limits[:, None].double(), confidences.double().exp()], 1).tolist()
        counts = schedule.num_nodes(batch, [chances[: int(num)] for num, *chances in read])
        if not any(counts):
            self.expanded_as = None
            return Draft.empty(batch)
        end = max(counts)
        return Draft(tokens[:, :end], None, uploaded(counts, tokens.device), parents[:, :end], depth)

    def rollback(self, batch: Batch) -> None:
        if batch.path is not None and self.expanded_as is not None:
            if self.is_merged:
                self.merged.judge(batch.host_path or [])
            batch = as_fed(batch, self.expanded_as, self.merged.is_fed if self.is_merged else None)
        self.expanded_as, self.is_merged = None, False
        super().rollback(batch)
