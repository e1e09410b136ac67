"""Losses between the target's distribution p and the draft's q.

Each takes log-probabilities `p` and `q`, both `(..., vocab)`, and gives `(...)`. A token that p rules out has -inf; q has no
-inf. Only q has gradients. The chance that a token drawn from q is accepted is sum(min(p, q)) (Leviathan et al. 2023, section
3.1): the *acceptance* in these formulas.
"""

from collections.abc import Callable

import torch
from torch import Tensor

#: keeps the logarithm finite where nothing is accepted, as speculators' `nla`
LEAST_ACCEPTANCE = 1e-5
#: how soon the hybrid turns from KL to total variation as the acceptance grows (LK losses, arXiv 2602.23881)
ETA = 3.0


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """The chance that a token of the draft is accepted: sum(min(p, q))."""
    return torch.minimum(p.exp(), q.exp()).sum(-1)


def agreement(p: Tensor, q: Tensor) -> Tensor:
    """1 where the likeliest token of the draft is the target's, as greedy decoding accepts it, else 0: without a gradient."""
    return (p.argmax(-1) == q.argmax(-1)).float()


def forward_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q): the classic loss of distillation (DistillSpec, arXiv 2310.08461)."""
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1)  # 0 times infinity is 0


def reverse_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(q || p): forgives what the draft leaves out, and nothing that the target rules out, where it is infinite."""
    return (q.exp() * (q - p)).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """1 - acceptance: the chance of a rejection itself. Its gradient vanishes where p and q hardly overlap."""
    return 1 - acceptance(p, q)


def negative_log_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """-log(acceptance): the gradient of total variation over the acceptance, so that it does not vanish (LK losses)."""
    return -torch.log(acceptance(p, q) + LEAST_ACCEPTANCE)


def lk_hybrid(p: Tensor, q: Tensor) -> Tensor:
    """w KL(p || q) + (1 - w) total variation, w = exp(-3 acceptance), without a gradient of its own (LK losses).

    It begins as KL, which pulls from afar, and ends as the chance of a rejection.
    """
    accepted = acceptance(p, q)
    weight = torch.exp(-ETA * accepted.detach())
    return weight * forward_kl(p, q) + (1 - weight) * (1 - accepted)


def cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    """-log q of the target's likeliest token: for greedy decoding alone."""
    return -q.gather(-1, p.argmax(-1, keepdim=True))[..., 0]


Loss = Callable[[Tensor, Tensor], Tensor]
_ALL = (lk_hybrid, forward_kl, reverse_kl, total_variation, negative_log_acceptance, cross_entropy)
LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in _ALL}
