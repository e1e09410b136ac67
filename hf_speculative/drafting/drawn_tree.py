"""Trees of a drafter's draws: siblings without replacement, for rules that judge by what a token was drawn from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..interfaces import Sampler, Schedule
from ..types import Batch, Draft, uploaded
from .levels import Levels
from .nodes import as_fed
from .stepwise import Stepwise
from .wrapped import WrappedDrafter


class DrawnTree(WrappedDrafter):
    """Draws `top_k` tokens after the newest one, and after the likeliest nodes of each level, no two siblings alike.

    Chen et al. 2024, Sequoia (arXiv 2402.12374); Jeon et al. 2024 (arXiv 2402.14160). How many nodes there are, and how many of
    a level are followed, is fixed before anything is drawn. Which of them are followed may depend on their tokens, for all that
    was drawn is verified. Greedy and reproducible calls get the chain of the other drafter.

    Args:
        drafter: scores the levels.
        top_k: siblings after a node.
        depth: the longest path; its levels share the number of draft tokens.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, drafter: Stepwise, top_k: int = 2, depth: int = 5):
        for name, value in (("top_k", top_k), ("depth", depth)):
            if value < 1:
                raise ValueError(f"`{name}={value}` drafts nothing: give 1 or more.")
        super().__init__(drafter)
        self.stepwise, self.top_k, self.depth = drafter, top_k, depth
        self.branches = drafter.scores_levels
        self.expanded_as: Tensor | None = None

    def branches_with(self, sampler: Sampler) -> bool:
        is_drawn = sampler.keeps_draft_probs and not sampler.one_hot_proposals
        return self.branches and sampler.drafts_trees and is_drawn

    def widths(self, num_nodes: int, depth: int) -> list[int]:
        """How many nodes of each level but the last are followed, in a tree of up to `num_nodes`: as even as can be."""
        widths, left = list[int](), num_nodes // self.top_k - 1  # nodes that can be followed beside the newest token
        for level in range(1, depth):
            width = min(-(-left // (depth - level)), self.top_k * (widths or [1])[-1])
            if width == 0:
                break
            widths.append(width)
            left -= width
        return widths

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        self.expanded_as = None
        rooms = [min(n, room) for n, room in zip(num_tokens, batch.rooms, strict=True)]
        may_grow = self.may_branch and sampler.drafts_trees and not schedule.may_stop
        if not may_grow or max(num_tokens) < self.top_k:
            return super().propose(batch, rooms, schedule, sampler)
        depth = max(self.stepwise.limit(batch, [min(self.depth, room) for room in rooms]))
        if depth == 0:
            return Draft.empty(batch)
        scores = sampler.draft_scores(batch, self.stepwise.step(batch, 0), 0)
        levels = _DrawnLevels(self.top_k, scores[:, None], sampler)
        for width in self.widths(max(num_tokens), depth):
            levels.expand(width)
            batch.put(levels.expanded_tokens, tree=levels.expanded_tree)
            end = levels.expanded.shape[1]
            levels.add(sampler.level_scores(batch, self.stepwise.level(batch, end, width), end - width))
        counts = [min(n, levels.tokens.shape[1]) for n in num_tokens]
        parents, self.expanded_as = levels.nodes
        num = uploaded(counts, parents.device)
        return Draft(levels.tokens, torch.cat(levels.probs, 1), num, parents, levels.depth + 1)

    def rollback(self, batch: Batch) -> None:
        if batch.path is not None and self.expanded_as is not None:
            batch = as_fed(batch, self.expanded_as)
        self.expanded_as = None
        super().rollback(batch)


class _DrawnLevels(Levels):
    """Candidates that are drawn, by scores in place of confidences; all of them are proposed, in the order of drawing.

    Attributes:
        probs: of each level, what its candidates were drawn from, `(batch, m, vocab)`: given the siblings before it.
    """

    def __init__(self, top_k: int, scores: Tensor, sampler: Sampler):
        self.sampler, self.probs = sampler, list[Tensor]()
        super().__init__(top_k, scores)

    def candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.sampler.probs(log_probs)
        left, tokens, probs = whole, [], []
        for _ in range(self.top_k):
            probs.append(left)
            tokens.append(self.sampler.categorical(left, self.depth))
            left = functional.normalize(left.scatter(2, tokens[-1][..., None], 0), p=1, dim=2)  # zeros: nothing is left
        drawn, drawn_from = torch.stack(tokens, 2), torch.stack(probs, 2)
        self.probs.append(drawn_from.flatten(1, 2))
        is_new = drawn_from.gather(3, drawn[..., None])[..., 0] > 0
        return torch.where(is_new, whole.gather(2, drawn), 0).log(), drawn

    @property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """`(batch, m)`: the parent of each candidate, and which of the expanded ones it is, their number if none."""
        parents = functional.pad(self.expanded, (1, 0), value=-1).gather(1, self.parents + 1)
        num_expanded = self.expanded.shape[1]
        numbers = torch.arange(num_expanded, device=parents.device).expand_as(self.expanded)
        return parents, torch.full_like(parents, num_expanded).scatter_(1, self.expanded, numbers)
