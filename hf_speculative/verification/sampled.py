"""Sampled verification: draw from the target at every position and follow the draft while the two agree.

It never looks at the draft's distribution, so it is exact for any proposal whatsoever: greedy, looked up, or coupled to the
target's own noise. For a one-hot proposal it accepts as much as any rule can.
(Chen et al. and Leviathan et al. with one-hot q.) In a tree, the draws lead from the newest token down, as far as each has
been guessed (Miao et al. 2024, SpecInfer, arXiv 2305.09781, their naive sampling).
"""

import torch
from torch import Tensor

from ..interfaces import Sampler
from ..types import Draft, Tree, Verdict
from .residual import LosslessRule, is_proposed, path_of, probability_of, product_along


class SampledVerification(LosslessRule):
    """Emit what the target draws; the draft only decides how many of the draws are used."""

    reads_draft_probs = False
    emits_draws = True

    def _along_chain(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        drawn = sampler.categorical(target_probs)
        agrees = (drawn[:, :-1] == draft.tokens) & is_proposed(draft)
        num_accepted = agrees.long().cumprod(1).sum(1)
        acceptance_prob = None if _knows_noise(sampler) else probability_of(target_probs, draft.tokens).cumprod(1)
        return Verdict(num_accepted, drawn.gather(1, num_accepted[:, None])[:, 0], acceptance_prob)

    def _along_tree(self, draft: Draft, tree: Tree, target_probs: Tensor, sampler: Sampler) -> Verdict:
        drawn = sampler.categorical(target_probs, tree=tree)
        before = tree.parents + 1  # the position that each node was guessed at
        may_agree = is_proposed(draft) & ~_is_repeated(draft, tree)
        kept = path_of(tree, (drawn.gather(1, before) == draft.tokens) & may_agree)
        rows = torch.arange(len(drawn), device=drawn.device)
        chances = target_probs[rows[:, None], before, draft.tokens] * may_agree
        acceptance_prob = None if _knows_noise(sampler) else product_along(tree, chances)
        return Verdict(kept.num_nodes, drawn[rows, kept.position], acceptance_prob, kept.nodes)


def _knows_noise(sampler: Sampler) -> bool:
    """Coupled or greedy, a draft looks at the target's own noise: its chance is then what came of it."""
    return sampler.one_hot_proposals and not sampler.proposes_likeliest


def _is_repeated(draft: Draft, tree: Tree) -> Tensor:
    """`(batch, k)` bool: nodes that guess what a sibling before them does.

    Each has a draw of its own behind it: to choose between them by what was drawn would bias the output.
    """
    return ((draft.tokens[:, :, None] == draft.tokens[:, None]) & tree.elders).any(2)
