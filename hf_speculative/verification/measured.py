"""Measure in each round which of two drafts is accepted more often: drawn from q, or q's likeliest token."""

from dataclasses import replace

import torch
from torch import Tensor

from ..forwarding import forwards_to
from ..interfaces import Rule, Sampler
from ..types import Draft, Verdict
from .residual import is_proposed


@forwards_to("rule")
class Measured(Rule):
    """A rule around another one, whose verdict it passes on with `Verdict.chances`."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        return replace(verdict, chances=chances_of(draft, target_probs, verdict.num_accepted))


def chances_of(draft: Draft, target_probs: Tensor, num_accepted: Tensor) -> Tensor | None:
    """See `Verdict.chances`. Positions behind the first loss are left out: no text got there."""
    q = draft.probs if draft.likeliest_of is None else draft.likeliest_of
    if q is None or draft.tree is not None:
        return None
    if q.device.type == "cpu":
        q = q[:, : int(num_accepted.max()) + 1]
    width = q.shape[1]
    p = target_probs[:, :width, : q.shape[2]]  # a draft may have fewer tokens
    if_drawn = torch.minimum(p, q).sum(2)
    if_likeliest = p.gather(2, q.argmax(2, keepdim=True))[..., 0]
    positions = torch.arange(width, device=p.device)
    is_reached = is_proposed(draft)[:, :width] & (positions <= num_accepted[:, None])
    return (torch.stack([if_drawn, if_likeliest], 2) * is_reached[..., None]).sum(1)
