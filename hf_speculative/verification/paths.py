"""Shared parts of rules for trees: the accepted path, and siblings that take turns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Draft, Tree
from .residual import is_proposed


@dataclass(frozen=True)
class Path:
    """The path that each row keeps.

    Attributes:
        num_nodes: `(batch,)`.
        nodes: `(batch, depth)`, in order; what stands beyond `num_nodes` is filler.
        position: `(batch,)`, where it ends: 0 at the row's newest token, else 1 + its last node.
    """

    num_nodes: Tensor
    nodes: Tensor
    position: Tensor


def path_of(tree: Tree, is_chosen: Tensor) -> Path:
    """From the newest token down through nodes that `is_chosen (batch, n)`, of which siblings have one at most."""
    is_kept = (is_chosen[:, None] | ~tree.ancestors).all(2)  # with all before it
    num_nodes, last = (is_kept * tree.depths[:, 1:]).max(1)
    rows = torch.arange(len(last), device=last.device)
    return Path(num_nodes, tree.paths[rows, last], torch.where(num_nodes > 0, last + 1, 0))


def product_along(tree: Tree, chances: Tensor) -> Tensor:
    """`(batch, n)`: the product of `chances (batch, n)` over each node and all before it."""
    return torch.where(tree.ancestors, chances[:, None], 1).prod(2)


@dataclass(frozen=True)
class Turns:
    """What comes of siblings that take turns, in their order, each at what those before it have left of the target.

    Attributes:
        tree: of the nodes.
        claims: `(batch, n)`, the chance that a node is kept once it is its turn.
        ends: `(batch, n + 1)`, the chance that a path which has come to a position, and leads to none of its children, ends
            there; it is 1 at the newest token.
        residual: `(batch, n + 1, vocab)`, what the next token is drawn from if it does.
    """

    tree: Tree
    claims: Tensor
    ends: Tensor
    residual: Tensor

    @property
    def none_before(self) -> Tensor:
        """`(batch, n)`: the chance that a node gets its turn, its parent's children having theirs."""
        return torch.where(self.tree.elders, 1 - self.claims[:, None], 1).prod(2)

    def first(self, succeeds: Tensor) -> Tensor:
        """`(batch, n)` bool: the first among its siblings that `succeeds (batch, n)`."""
        return succeeds & ~(self.tree.elders & succeeds[:, None]).any(2)


def take_turns(draft: Draft, tree: Tree, target_probs: Tensor, pass_on: bool) -> Turns:
    """Let all nodes of a tree take their turns.

    `Draft.probs` has what each node was drawn from, given the siblings before it. So this is one formula for siblings drawn
    independently, without replacement, and not by chance at all.

    Args:
        pass_on: a node hands its claim on to what follows it, as in block verification. Otherwise its children take turns once
            it is kept, as in token verification.
    """
    draft_probs, proposed = draft.dense_probs(target_probs), is_proposed(draft)
    residual, ends = target_probs.clone(), torch.ones_like(target_probs[..., 0])
    claims = torch.zeros_like(ends[:, 1:])
    rows = torch.arange(len(ends), device=ends.device)
    for node in range(draft.width):
        parent, token = tree.parents[:, node] + 1, draft.tokens[:, node]
        p, claim = residual[rows, parent], ends[rows, parent]
        q = torch.where(proposed[:, node, None], draft_probs[:, node], 0)  # no proposal takes nothing
        ratio = torch.where(q[rows, token] > 0, p[rows, token] / q[rows, token], 0).nan_to_num(0)
        claims[:, node] = (claim * ratio).clamp(max=1)
        if pass_on:
            ends[:, node + 1] = claims[:, node]

        left = (claim[:, None] * p - q).clamp(min=0)
        mass = left.sum(1)
        either = mass + 1 - claim
        ends[rows, parent] = torch.where(either > 0, mass / either, claim)
        residual[rows, parent] = torch.where(mass[:, None] > 0, left / mass[:, None], p)
    return Turns(tree, claims, ends, residual)
