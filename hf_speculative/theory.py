"""What speculation should bring: the papers' formulas, as functions of numbers; no model is involved.

p is the target's distribution, q the draft's; gamma tokens are drafted in a round, which adds one of its own, the bonus token.
Leviathan et al. 2023 (arXiv 2211.17192) take every draft token to be accepted independently with probability alpha. The
functions of `acceptance_prob` need no such assumption: s_i is the probability that a round keeps at least i draft tokens.
They help to plan a pair (docs/draft-length.md).
"""

import math
from collections.abc import Sequence

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
    pass; where it takes longer, use `speedup_from_survival`. Errors as `expected_tokens`, cost being finite and >= 0.
    """
    _require_amount("cost", cost)
    return expected_tokens(alpha, gamma) / (gamma * cost + 1)


def best_gamma(alpha: float, cost: float, max_gamma: int = 100) -> int:
    """The gamma of the largest `walltime_factor`, the smallest of equals; 0 is plain decoding.

    It is above 0 iff alpha > cost. For cost 0 only `max_gamma` ends it, or a gain that rounds to nothing.
    (Leviathan et al. 2023, section 3.5, Corollary 3.9.) Errors as `walltime_factor`, max_gamma being an integer >= 0.
    """
    _require_count("max_gamma", max_gamma)
    return max(range(max_gamma + 1), key=lambda gamma: walltime_factor(alpha, gamma, cost))


def expected_tokens_from_survival(acceptance_prob: Sequence[float] | Tensor) -> float:
    """Mean number of tokens a round emits, **bonus token included**: 1 + s_1 + ... + s_gamma.

    `acceptance_prob` is `(gamma,)`, s_1 first; of estimates, the mean over rounds.

    Raises:
        ValueError: `acceptance_prob` does not have one dimension, or does not hold probabilities.
    """
    if isinstance(acceptance_prob, Tensor):
        shape = tuple(acceptance_prob.shape)
        _require(len(shape) == 1, "acceptance_prob.shape", shape, "should be (gamma,): average the rounds, `.mean(0)`")
        acceptance_prob = acceptance_prob.tolist()
    for value in acceptance_prob:
        _require(0 <= value <= 1, "acceptance_prob", value, "is a probability: give numbers from 0 to 1")
    return 1 + sum(acceptance_prob)


def speedup_from_survival(
    acceptance_prob: Sequence[float] | Tensor, draft_time: float, verify_time: float, target_time: float
) -> float:
    """How many times faster than plain decoding: a round's tokens times `target_time`, over the time the round takes.

    Args:
        acceptance_prob: `(gamma,)`, s_1 first.
        draft_time: seconds to draft **all** gamma tokens.
        verify_time: seconds to score the gamma + 1 positions in one target pass, and to verify.
        target_time: seconds of a target pass over one token, which is what plain decoding takes per token.

    Errors as `expected_tokens_from_survival`, times being finite and > 0 (draft_time >= 0).
    """
    _require_amount("draft_time", draft_time)
    _require_amount("target_time", target_time, positive=True)
    _require_amount("verify_time", verify_time, positive=True)
    return expected_tokens_from_survival(acceptance_prob) * target_time / (draft_time + verify_time)


def best_gamma_from_survival(
    acceptance_prob: Sequence[float] | Tensor,
    draft_times: Sequence[float],
    verify_times: Sequence[float],
    target_time: float,
) -> int:
    """The gamma of the largest `speedup_from_survival`, the smallest of equals; 0, plain decoding, if none is above 1.

    `acceptance_prob`, `draft_times` and `verify_times` are `(max_gamma,)`: what that function takes for gamma = 1, 2, ...
    Errors are the same, and that the lengths differ.
    """
    lengths = len(acceptance_prob), len(draft_times), len(verify_times)
    if len(set(lengths)) > 1:
        names = "`acceptance_prob`, `draft_times`, `verify_times`"
        raise ValueError(f"{names} have the lengths {lengths}: give one per gamma.")
    times = zip((0.0, *draft_times), (target_time, *verify_times), strict=True)
    speedups = [speedup_from_survival(acceptance_prob[:gamma], *pair, target_time) for gamma, pair in enumerate(times)]
    return speedups.index(max(speedups))


def _require(condition: bool, name: str, value: object, what_is_right: str) -> None:
    if not condition:
        raise ValueError(f"`{name}={value!r}` {what_is_right}.")


def _require_count(name: str, value: int) -> None:
    _require(isinstance(value, int) and value >= 0, name, value, "is a number of tokens: give an integer >= 0")


def _require_amount(name: str, value: float, positive: bool = False) -> None:
    is_right = math.isfinite(value) and (value > 0 or (value == 0 and not positive))
    _require(is_right, name, value, f"is out of range: give a finite number {'>' if positive else '>='} 0")
