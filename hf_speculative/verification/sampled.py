"""Sampled verification: draw from the target at every position and follow the draft while the two agree.

It never looks at the draft's distribution, so it is exact for any proposal whatsoever: greedy, looked up, or coupled to the
target's own noise. For a one-hot proposal it accepts as much as any rule can.
(Chen et al. and Leviathan et al. with one-hot q.)
"""

from __future__ import annotations

from torch import Tensor

from ..interfaces import Rule, Sampler
from ..types import Draft, Verdict
from .residual import is_proposed, probability_of


class SampledVerification(Rule):
    """Emit what the target draws; the draft only decides how many of the draws were worth making."""

    lossless = True
    reads_draft_probs = False

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        drawn = sampler.categorical(target_probs)
        agrees = (drawn[:, :-1] == draft.tokens) & is_proposed(draft)
        num_accepted = agrees.long().cumprod(1).sum(1)
        # Coupled or greedy, the draft looked at the target's own noise: its chance is then what came of it.
        survival = None if sampler.one_hot_proposals else probability_of(target_probs, draft.tokens).cumprod(1)
        return Verdict(num_accepted, drawn.gather(1, num_accepted[:, None])[:, 0], survival)
