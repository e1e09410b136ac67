"""Rules around another one: it measures two kinds of drafts, or judges by the few tokens that the target can draw."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ..forwarding import forwards_to
from ..interfaces import Rule, Sampler
from ..types import Draft, Few, Verdict
from .residual import is_proposed

#: a probability that is not 0
UNLIKELY = 1e-30


@forwards_to("rule")
class WrappedRule(Rule):
    """A rule around another one: what a subclass does not define is the other's."""

    def __init__(self, rule: Rule):
        self.rule = rule


class Measured(WrappedRule):
    """Passes on the other's verdict with `Verdict.chances`: which of two drafts is accepted more often.

    The two are drawn from q, or q's likeliest token.
    """

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        return replace(verdict, chances=chances_of(draft, target_probs, verdict.num_accepted))


class Narrowed(WrappedRule):
    """A rule of ours for `target_probs` of all tokens or of `Few`."""

    takes_few = True

    def __call__(self, draft: Draft, target_probs: Tensor | Few, sampler: Sampler) -> Verdict:
        if isinstance(target_probs, Tensor):
            return self.rule(draft, target_probs, sampler)
        given = (draft.probs, draft.likeliest_of) if self.rule.reads_draft_probs else (None, None)
        probs, likeliest_of = (_narrowed(found, target_probs) for found in given)
        own = replace(draft, tokens=target_probs.places(draft.tokens), probs=probs, likeliest_of=likeliest_of)
        verdict = self.rule(own, target_probs.values, sampler)
        return replace(verdict, next_token=target_probs.ids[verdict.next_token])


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


def _narrowed(probs: Tensor | None, few: Few) -> Tensor | None:
    """A draft's probabilities `(batch, k, any vocab)` of the same tokens, and a last one, which the target cannot draw.

    It is the largest where the draft's likeliest token is none of these, and positive elsewhere: rules divide by it.
    """
    if probs is None:
        return None
    is_other = few.places(probs.argmax(-1, keepdim=True)) == len(few.ids)
    probs = functional.pad(probs.float(), (0, max(0, few.vocab_size - probs.shape[-1])))
    return torch.cat([probs.index_select(-1, few.ids), is_other.float().clamp(min=UNLIKELY)], -1)
