"""Trees of a drafter's draws: siblings without replacement, for rules that judge by what a token was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import torch
from torch import Tensor
from torch.nn import functional

from ..interfaces import Sampler, Schedule
from ..types import Batch, Draft, Tree, uploaded
from .autoregressive import AutoregressiveDrafter
from .nodes import as_fed
from .wrapped import WrappedDrafter

#: how often the first sibling is kept, the second, ..., where nobody says more
DEFAULT_RATES = (0.75, 0.1, 0.04)


class DrawnTree(WrappedDrafter):
    """Draws a tree of one shape, no two siblings alike; the number of draft tokens is that of its nodes.

    Chen et al. 2024, Sequoia (arXiv 2402.12374): how many children a node has is fixed before anything is drawn, by how often a
    sibling of each rank is kept, so that the nodes are there that are likeliest to be kept. Greedy and reproducible calls get
    the chain of the other drafter.

    Args:
        drafter: scores the levels.
        rates: the chance that the first of siblings is kept, the second, ...: there are no more of them than rates.
        depth: the longest path.

    Raises:
        ValueError: no chance at all, or no depth.
    """

    def __init__(self, drafter: AutoregressiveDrafter, rates: Sequence[float] = DEFAULT_RATES, depth: int = 8):
        if not rates or not all(0 < rate <= 1 for rate in rates):
            raise ValueError(f"`rates={rates}`: give a chance above 0 for each sibling.")
        if depth < 1:
            raise ValueError(f"`depth={depth}` drafts nothing: give 1 or more.")
        super().__init__(drafter)
        self.autoregressive, self.rates, self.depth = drafter, tuple(rates), depth
        self.branches = drafter.scores_levels
        self.fed_as: list[int] | None = None

    def branches_with(self, sampler: Sampler) -> bool:
        is_drawn = sampler.keeps_draft_probs and not sampler.one_hot_proposals
        return self.branches and sampler.drafts_trees and is_drawn

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        self.fed_as = None
        rooms = [min(n, room) for n, room in zip(num_tokens, batch.rooms, strict=True)]
        if not self.may_branch or not sampler.drafts_trees or schedule.may_stop:
            return super().propose(batch, rooms, schedule, sampler)
        depth = max(self.autoregressive.limit(batch, [min(self.depth, room) for room in rooms]))
        if depth == 0:
            return Draft.empty(batch)
        levels = shape(self.rates, max(num_tokens), depth)
        parents = [parent for level in levels for parent, _ in level]
        fed = sorted({parent for parent in parents if parent >= 0})  # what others follow
        tokens, probs = batch.tokens.new_empty(len(rooms), 0), []
        for ahead, level in enumerate(levels):
            if ahead == 0:
                scores, asked = sampler.draft_scores(batch, self.autoregressive.step(batch, 0), 0)[:, None], [-1]
            else:
                now = [node for node in fed if node < tokens.shape[1]]
                asked = sorted({parent for parent, _ in level})
                among = [now.index(parents[node]) if parents[node] >= 0 else -1 for node in now]
                tree = Tree(uploaded([among] * len(rooms), tokens.device, torch.long), ahead)
                batch.put(tokens[:, now], tree=tree)
                scores = self.autoregressive.level(batch, len(now), len(asked))
                scores = sampler.level_scores(batch, scores, len(now) - len(asked))
            drawn, drawn_from = self._siblings(sampler.probs(scores), sampler, ahead)
            places, ranks = [asked.index(parent) for parent, _ in level], [rank for _, rank in level]
            tokens = torch.cat([tokens, drawn[:, places, ranks]], 1)
            probs.append(drawn_from[:, places, ranks])
        self.fed_as = [fed.index(node) if node in fed else len(fed) for node in range(len(parents))]
        limits = uploaded([min(n, len(parents)) for n in num_tokens], tokens.device)
        in_rows = uploaded([parents] * len(rooms), tokens.device, torch.long)
        return Draft(tokens, torch.cat(probs, 1), limits, in_rows, len(levels))

    def _siblings(self, q: Tensor, sampler: Sampler, ahead: int) -> tuple[Tensor, Tensor]:
        """Of each of `q (batch, width, vocab)`: tokens `(batch, width, siblings)`, and what each was drawn from."""
        tokens, probs, left = [], [], q
        for _ in self.rates:
            probs.append(left)
            tokens.append(sampler.categorical(torch.where(left.any(2, keepdim=True), left, q), ahead))
            left = functional.normalize(left.scatter(2, tokens[-1][..., None], 0), p=1, dim=2)  # zeros: nothing is left
        return torch.stack(tokens, 2), torch.stack(probs, 2)

    def rollback(self, batch: Batch) -> None:
        if batch.path is not None and self.fed_as is not None:
            nodes = uploaded([self.fed_as] * len(batch.path), batch.path.device, torch.long)
            batch = as_fed(batch, nodes)
        self.fed_as = None
        super().rollback(batch)


def shape(rates: Sequence[float], num_nodes: int, depth: int) -> list[list[tuple[int, int]]]:
    """The nodes that are likeliest to be kept, by level: each node's parent, -1 for the newest token, and its rank."""
    grown: list[tuple[int, int, int]] = []  # level, parent as it grew, rank
    waiting = [(-rates[0], 0, -1, 0)]
    while waiting and len(grown) < num_nodes:
        chance, level, parent, rank = heappop(waiting)
        if level + 1 < depth:
            heappush(waiting, (chance * rates[0], level + 1, len(grown), 0))
        if rank + 1 < len(rates):
            heappush(waiting, (chance / rates[rank] * rates[rank + 1], level, parent, rank + 1))
        grown.append((level, parent, rank))
    order = sorted(range(len(grown)), key=lambda node: grown[node][0])  # stable: elders come first
    place = {node: i for i, node in enumerate(order)}
    levels: list[list[tuple[int, int]]] = [[] for _ in range(max(level for level, _, _ in grown) + 1)]
    for node in order:
        level, parent, rank = grown[node]
        levels[level].append((place.get(parent, -1), rank))
    return levels
