"""What speculation should bring: the papers' formulas, as functions of numbers; no model is involved.

p is the target's distribution, q the draft's; gamma tokens are drafted in a round, which adds one of its own, the bonus token.
Leviathan et al. 2023 (arXiv 2211.17192) take every draft token to be accepted independently with probability alpha.
The functions help to plan a pair (docs/draft-length.md).
"""

import math

import torch
from torch import Tensor


def acceptance_rate(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """`(...)`, the probability that token verification keeps a draft token: sum of min(p, q), which is 1 - TV(p, q).

    Its mean over positions is alpha. (Leviathan et al. 2023, Theorem 3.5 and Corollary 3.6.)

    Args:
        target_probs, draft_probs: `(..., vocab)`, the distributions tokens are drawn from, after temperature, top-k and so on.

    Raises:
        ValueError: the shapes differ, or a row is not a distribution.
    """
    if target_probs.shape != draft_probs.shape:
        shapes = f"{tuple(target_probs.shape)} and {tuple(draft_probs.shape)}"
        raise ValueError(f"`target_probs` and `draft_probs` have the shapes {shapes}: give one vocabulary.")
    for name, probs in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        # wide enough for a softmax in bfloat16, narrow enough to catch logits
        is_one = (probs.sum(-1, dtype=torch.float32) - 1).abs() < 0.01
        if not (is_one.all() and (probs >= 0).all()):
            raise ValueError(f"`{name}` has rows that are not distributions: give probabilities, not logits.")
    return torch.minimum(target_probs, draft_probs).sum(-1)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Mean number of tokens a round emits, **bonus token included**: (1 - alpha^(gamma+1)) / (1 - alpha).

    It is gamma + 1 for alpha = 1. (Leviathan et al. 2023, equation 1.)

    Raises:
        ValueError: alpha is not in [0, 1], or gamma not an integer >= 0.
    """
    _require(0 <= alpha <= 1, "alpha", alpha, "is a probability: give a number from 0 to 1")
    _require_count("gamma", gamma)
    return 1 + sum(alpha**i for i in range(1, gamma + 1))  # the geometric sum does not cancel near alpha = 1


def walltime_factor(alpha: float, gamma: int, cost: float) -> float:
    """How many times faster than plain decoding. (Leviathan et al. 2023, Theorem 3.8.)

    `cost` is seconds of a draft pass over seconds of a target pass, c. Scoring gamma + 1 positions counts as one target
    pass. Errors as `expected_tokens`, cost being finite and >= 0.
    """
    _require(math.isfinite(cost) and cost >= 0, "cost", cost, "is out of range: give a finite number >= 0")
    return expected_tokens(alpha, gamma) / (gamma * cost + 1)


def best_gamma(alpha: float, cost: float, max_gamma: int = 100) -> int:
    """The gamma of the largest `walltime_factor`, the smallest of equals; 0 is plain decoding.

    It is above 0 iff alpha > cost. For cost 0 only `max_gamma` ends it, or a gain that rounds to nothing.
    (Leviathan et al. 2023, section 3.5, Corollary 3.9.) Errors as `walltime_factor`, max_gamma being an integer >= 0.
    """
    _require_count("max_gamma", max_gamma)
    return max(range(max_gamma + 1), key=lambda gamma: walltime_factor(alpha, gamma, cost))


def _require(condition: bool, name: str, value: object, what_is_right: str) -> None:
    if not condition:
        raise ValueError(f"`{name}={value!r}` {what_is_right}.")


def _require_count(name: str, value: int) -> None:
    _require(isinstance(value, int) and value >= 0, name, value, "is a number of tokens: give an integer >= 0")
