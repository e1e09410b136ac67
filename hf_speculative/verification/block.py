"""Block verification: the draft is judged as one block, which keeps at least as much as judging token by token.

Sun et al., "Block Verification Accelerates Speculative Decoding", ICLR 2025 (arXiv 2403.10444), Algorithm 2: the version
that leaves the target as it is. It is optimal among rules that verify a single draft (their Theorem 2). On trees this is
traversal verification: Weng et al. 2025 (arXiv 2505.12398).
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..interfaces import Sampler
from ..types import Draft, Tree, Verdict
from .residual import LosslessRule, draw_at, draw_next_token, is_proposed, path_of, probability_of, product_along, take_turns


class BlockVerification(LosslessRule):
    """Keep the longest prefix whose coin comes up; earlier coins that failed do not end the scan.

    The claim of prefix i is P_i = min(1, P_{i-1} p(x_i) / q(x_i)), with P_0 = 1. With S_i = sum (P_i p - q)+, it is kept with
    probability S_i / (S_i + 1 - P_i), the whole draft with P_k. The next token then comes from (P_i p - q)+. It needs fresh
    randomness every round: noise keyed by position would be met again by the next round, which biases the output.

    In a tree, siblings take turns: what a rejected one leaves of the claim and of p is the next one's. A node's coin counts
    if those of all nodes below it have failed.
    """

    def _along_chain(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        draft_probs = draft.dense_probs(target_probs)
        proposed = is_proposed(draft)
        p, q = probability_of(target_probs, draft.tokens), probability_of(draft_probs, draft.tokens)

        # P_i in closed form: min(1, .) after each factor is the cumulative sum in logs less its running excess over 0.
        log_ratio = torch.where(proposed, p.log() - q.log(), 0).cumsum(1)
        excess = log_ratio.cummax(1).values.clamp(min=0)
        claim = functional.pad((log_ratio - excess).exp(), (1, 0), value=1.0)

        residual = (claim[:, :-1, None] * target_probs[:, : draft.width]).sub_(draft_probs).clamp_(min=0)
        mass = functional.pad(residual.sum(-1), (0, 1))
        denominator = mass + 1 - claim
        keep = torch.where(denominator > 0, mass / denominator, 1.0)[:, 1:]
        sizes = torch.arange(1, draft.width + 1, device=claim.device)
        keep = torch.where(sizes == draft.num_tokens[:, None], claim[:, 1:], keep)

        kept = sampler.bernoulli(keep) & proposed
        num_accepted = functional.pad(kept * sizes, (1, 0)).amax(1)
        next_token = draw_next_token(draft, target_probs, residual, num_accepted, sampler)
        return Verdict(num_accepted, next_token, claim[:, 1:])

    def _along_tree(self, draft: Draft, tree: Tree, target_probs: Tensor, sampler: Sampler) -> Verdict:
        turns = take_turns(draft, tree, target_probs, pass_on=True)
        ends = sampler.bernoulli(turns.ends[:, 1:])
        leads_to_end = (ends[:, :, None] & tree.ancestors).any(1)
        kept = path_of(tree, turns.first(leads_to_end))
        acceptance_prob = turns.claims * product_along(tree, turns.none_before)
        return Verdict(kept.num_nodes, draw_at(kept.position, turns.residual, sampler), acceptance_prob, kept.nodes)
