"""Token verification: each draft token is accepted or rejected on its own, in order.

Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023 (arXiv 2302.01318), Algorithm 2, which writes q for
the target and p for the draft. Here p is the target, q the draft.
"""

from __future__ import annotations

from torch import Tensor

from ..interfaces import Rule, Sampler
from ..types import Draft, Verdict
from .residual import draw_next_token, is_proposed, probability_of


class TokenVerification(Rule):
    """Accept x with probability min(1, p(x) / q(x)); at the first rejection draw from the residual (p - q)+."""

    lossless = True

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        draft_probs = draft.dense_probs(target_probs)
        p, q = probability_of(target_probs, draft.tokens), probability_of(draft_probs, draft.tokens)
        keep = (p / q).nan_to_num(0).clamp(max=1)
        accepted = sampler.bernoulli(keep) & is_proposed(draft)
        num_accepted = accepted.long().cumprod(1).sum(1)
        residual = (target_probs[:, : draft.width] - draft_probs).clamp(min=0)
        return draw_next_token(draft, target_probs, residual, num_accepted, sampler, survival=keep.cumprod(1))
