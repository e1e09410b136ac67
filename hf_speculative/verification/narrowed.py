"""Judge drafts by the few tokens that the target can draw."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ..forwarding import forwards_to
from ..interfaces import Rule, Sampler
from ..types import Draft, Few, Verdict

#: a probability that is not 0
UNLIKELY = 1e-30


@forwards_to("rule")
class Narrowed(Rule):
    """A rule of ours for `target_probs` of all tokens or of `Few`."""

    takes_few = True

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor | Few, sampler: Sampler) -> Verdict:
        if isinstance(target_probs, Tensor):
            return self.rule(draft, target_probs, sampler)
        given = (draft.probs, draft.likeliest_of) if self.rule.reads_draft_probs else (None, None)
        probs, likeliest_of = (_narrowed(found, target_probs) for found in given)
        own = replace(draft, tokens=target_probs.places(draft.tokens), probs=probs, likeliest_of=likeliest_of)
        verdict = self.rule(own, target_probs.values, sampler)
        return replace(verdict, next_token=target_probs.ids[verdict.next_token])


def _narrowed(probs: Tensor | None, few: Few) -> Tensor | None:
    """A draft's probabilities `(batch, k, any vocab)` of the same tokens, and a last one, which the target cannot draw.

    It is the largest where the draft's likeliest token is none of these, and positive elsewhere: rules divide by it.
    """
    if probs is None:
        return None
    is_other = few.places(probs.argmax(-1, keepdim=True)) == len(few.ids)
    probs = functional.pad(probs.float(), (0, max(0, few.vocab_size - probs.shape[-1])))
    return torch.cat([probs.index_select(-1, few.ids), is_other.float().clamp(min=UNLIKELY)], -1)
