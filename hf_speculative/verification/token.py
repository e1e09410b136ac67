"""Token verification: each draft token is accepted or rejected on its own, in order.

Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023 (arXiv 2302.01318), Algorithm 2, which writes q for
the target and p for the draft. Here p is the target, q the draft. On trees this is recursive rejection: Miao et al. 2024,
SpecInfer (arXiv 2305.09781), Algorithm 2; for siblings without replacement Chen et al. 2024, Sequoia (arXiv 2402.12374).
"""

from torch import Tensor

from ..interfaces import Sampler
from ..types import Draft, Tree, Verdict
from .residual import LosslessRule, draw_at, draw_next_token, is_proposed, path_of, probability_of, product_along, take_turns


class TokenVerification(LosslessRule):
    """Accept x with probability min(1, p(x) / q(x)); at the first rejection draw from the residual (p - q)+.

    In a tree, a sibling that is rejected leaves the residual to the next as its p, and the last one to the draw.
    """

    def _along_chain(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        draft_probs = draft.dense_probs(target_probs)
        p, q = probability_of(target_probs, draft.tokens), probability_of(draft_probs, draft.tokens)
        keep = (p / q).nan_to_num(0).clamp(max=1)
        accepted = sampler.bernoulli(keep) & is_proposed(draft)
        num_accepted = accepted.long().cumprod(1).sum(1)
        residual = (target_probs[:, : draft.width] - draft_probs).clamp_(min=0)
        next_token = draw_next_token(draft, target_probs, residual, num_accepted, sampler)
        return Verdict(num_accepted, next_token, keep.cumprod(1))

    def _along_tree(self, draft: Draft, tree: Tree, target_probs: Tensor, sampler: Sampler) -> Verdict:
        turns = take_turns(draft, tree, target_probs, pass_on=False)
        kept = path_of(tree, turns.first(sampler.bernoulli(turns.claims)))
        acceptance_prob = product_along(tree, turns.claims * turns.none_before)
        return Verdict(kept.num_nodes, draw_at(kept.position, turns.residual, sampler), acceptance_prob, kept.nodes)
