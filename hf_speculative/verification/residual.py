"""Shared parts of rules: their base class, drawing the token that the target adds, paths of trees, siblings that take turns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..interfaces import Rule, Sampler
from ..types import Draft, Tree, Verdict


class LosslessRule(Rule):
    """A rule with a method for chains and one for trees. Where nothing was drafted, every rule comes to a draw from p."""

    lossless = True
    takes_trees = True

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        if draft.tree is not None:
            return self._along_tree(draft, draft.tree, target_probs, sampler)
        if draft.width == 0:
            return Verdict(draft.num_tokens, sampler.categorical(target_probs)[:, 0])
        return self._along_chain(draft, target_probs, sampler)

    def _along_chain(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        raise NotImplementedError

    def _along_tree(self, draft: Draft, tree: Tree, target_probs: Tensor, sampler: Sampler) -> Verdict:
        raise NotImplementedError


def draw_next_token(draft: Draft, target_probs: Tensor, residual: Tensor, num_accepted: Tensor, sampler: Sampler) -> Tensor:
    """Draw the bonus token from p where the whole draft was kept, else from the residual at the first loss: `(batch,)`.

    Args:
        residual: `(batch, k, vocab)`, not normalised; a row of zeros, possible by rounding where p and q agree, means p.
        num_accepted: `(batch,)`.
    """
    rows = torch.arange(len(num_accepted), device=num_accepted.device)
    bonus = target_probs[rows, num_accepted]
    left_over = residual[rows, num_accepted.clamp(max=residual.shape[1] - 1)]  # of no use where all were kept
    keep_bonus = (num_accepted == draft.num_tokens) | (left_over.sum(-1) == 0)
    return sampler.categorical(torch.where(keep_bonus[:, None], bonus, left_over)[:, None])[:, 0]


def draw_at(position: Tensor, probs: Tensor, sampler: Sampler) -> Tensor:
    """A token a row from what `probs (batch, k + 1, vocab)` has at its `position (batch,)`: `(batch,)`."""
    rows = torch.arange(len(position), device=position.device)
    return sampler.categorical(probs[rows, position][:, None])[:, 0]


def is_proposed(draft: Draft) -> Tensor:
    """`(batch, k)` bool: which columns of the draft are real."""
    return torch.arange(draft.width, device=draft.tokens.device) < draft.num_tokens[:, None]


def probability_of(probs: Tensor, tokens: Tensor) -> Tensor:
    """`probs (batch, k or more, vocab)` at `tokens (batch, k)`: `(batch, k)`."""
    return probs[:, : tokens.shape[1]].gather(2, tokens[..., None])[..., 0]


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
