"""Shared parts of rules: their base class, and drawing the token that the target adds."""

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
