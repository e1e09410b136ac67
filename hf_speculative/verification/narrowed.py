"""Judge drafts by the few tokens that the target can draw."""

from dataclasses import replace

import torch
from torch import Tensor

from ..forwarding import forwards_to
from ..interfaces import Rule, Sampler
from ..types import Draft, Few, Verdict

#: the draft's probability of a token that the target cannot draw: no rule asks for more than that it is positive
UNLIKELY = 1e-30


@forwards_to("rule")
class Narrowed(Rule):
    """A rule of ours for `target_probs` of all tokens or of `Few`."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor | Few, sampler: Sampler) -> Verdict:
        if isinstance(target_probs, Tensor):
            return self.rule(draft, target_probs, sampler)
        probs, likeliest_of = (_narrowed(found, target_probs) for found in (draft.probs, draft.likeliest_of))
        own = replace(draft, tokens=target_probs.places(draft.tokens), probs=probs, likeliest_of=likeliest_of)
        verdict = self.rule(own, target_probs.values, sampler)
        return replace(verdict, next_token=target_probs.ids[verdict.next_token])


def _narrowed(probs: Tensor | None, few: Few) -> Tensor | None:
    """A draft's probabilities of the same tokens; the last one is the largest where the draft's likeliest is none of them."""
    if probs is None:
        return None
    is_other = few.places(probs.argmax(-1, keepdim=True)) == len(few.ids)
    return torch.cat([probs.index_select(-1, few.ids), is_other.to(probs.dtype).clamp(min=UNLIKELY)], -1)
