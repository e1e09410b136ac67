"""Grow a tree from levels of scored candidates: EAGLE-2's dynamic tree (Li et al. 2024, arXiv 2406.16858, section 4).

Scores come from the drafter: a pass of a draft model for each level, or a block that is known at once.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..types import Tree


class Levels:
    """Candidates, a level at a time, and the tree of the most confident of them; all of it on the device.

    The confidence of a candidate is the product of the probabilities on its path. Of each level, the most confident are
    expanded: what may follow them is the next level. Nothing is left to chance, so that a draft of them is deterministic.

    Args:
        top_k: candidates after each node, and nodes of each level that are expanded.
        log_probs: `(batch, 1, vocab)` of what follows each row's newest token.

    Attributes:
        tokens: `(batch, m)` int64, all candidates so far.
        parents: `(batch, m)` int64, the expanded node that each follows, -1 for the row's newest token.
        confidences: `(batch, m)` in logs.
        expanded: `(batch, e)` int64, which candidates were expanded, parents first.
        depth: levels that were expanded.
    """

    def __init__(self, top_k: int, log_probs: Tensor):
        self.top_k, self.depth = top_k, 0
        self.confidences = log_probs.new_empty(len(log_probs), 0)
        self.tokens = self.parents = self.expanded = self.confidences.long()
        self.newest = log_probs.new_zeros(len(log_probs), 1)  # confidences of what the next candidates follow
        self.add(log_probs)

    def add(self, log_probs: Tensor) -> None:
        """The candidates of a level: what follows, by `log_probs (batch, width, vocab)`, each node that was expanded last."""
        own, tokens = log_probs.topk(min(self.top_k, log_probs.shape[2]))
        end = self.expanded.shape[1]
        parents = torch.arange(end - own.shape[1], end, device=tokens.device)[:, None].expand_as(tokens)
        self.first = self.tokens.shape[1]
        self.tokens = torch.cat([self.tokens, tokens.flatten(1)], 1)
        self.parents = torch.cat([self.parents, parents.flatten(1)], 1)
        self.confidences = torch.cat([self.confidences, (self.newest[..., None] + own).flatten(1)], 1)

    def expand(self) -> tuple[int, Tensor, Tree]:
        """The next level follows the most confident candidates of this one.

        Returns:
            How many they are; all that were expanded so far, `(batch, e)`; and the tree of those.
        """
        level = self.confidences[:, self.first :]
        self.newest, best = level.topk(min(self.top_k, level.shape[1]))
        self.expanded = torch.cat([self.expanded, self.first + best], 1)
        self.depth += 1
        tokens, parents = (values.gather(1, self.expanded) for values in (self.tokens, self.parents))
        return best.shape[1], tokens, Tree(parents, self.depth)

    def best(self, num_nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The most confident candidates of all levels, the most confident first.

        None is more confident than its parent, which comes first where they are equal: so each brings the path to it along.

        Returns:
            `(batch, n)` tokens, parents among them, confidences, and which of the expanded nodes each is, their number if none.
        """
        confidences, order = self.confidences.sort(dim=1, descending=True, stable=True)
        rank = order.argsort(1)
        after = self.parents.gather(1, order) + 1
        parents = functional.pad(rank.gather(1, self.expanded), (1, 0), value=-1).gather(1, after)
        num_expanded = self.expanded.shape[1]
        numbers = torch.arange(num_expanded, device=order.device).expand_as(self.expanded)
        expanded_as = torch.full_like(order, num_expanded).scatter_(1, rank.gather(1, self.expanded), numbers)
        found = self.tokens.gather(1, order), parents, confidences, expanded_as
        return tuple(values[:, :num_nodes] for values in found)  # type: ignore[return-value]
