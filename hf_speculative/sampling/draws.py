"""Draw tokens from probabilities: by a race of exponential noise, as `torch.multinomial` does, or by their sums."""

import math

import torch
from torch import Tensor

#: the most tokens, and the fewest, of a part of the vocabulary when a token is drawn by sums
MOST_OF_PART, FEWEST_OF_PART = 512, 16
#: tokens for each that has a probability, from which on those are looked for
FEWEST_IMPOSSIBLE = 8


def exponential_race(probs: Tensor, noise: Tensor) -> Tensor:
    """Draw from `probs (..., vocab)`, not necessarily normalised, with `noise` ~ Exp(1) of the same shape.

    `torch.multinomial` draws one sample in this very way. A token of probability 0 cannot win.
    """
    return (probs / noise).argmax(-1)


def race_of_possible(probs: Tensor, noise: Tensor) -> int:
    """The same for one position, `(vocab,)` on a CPU: where few tokens have a probability, the others' noise is not read."""
    if FEWEST_IMPOSSIBLE * int(probs.count_nonzero()) > len(probs):
        return int(exponential_race(probs, noise))
    possible = probs.nonzero()[:, 0]
    return int(possible[exponential_race(probs[possible], noise[possible])])


def inverse_transform(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw from `probs (..., vocab)`, not necessarily normalised, by `uniform (..., 1)` in [0, 1), of float64.

    A part of the vocabulary first, then a token of it: sums over all tokens, one by one, take up to forty times as long. A
    token of probability 0 is never drawn.
    """
    size = math.gcd(probs.shape[-1], MOST_OF_PART)
    parts = probs.unflatten(-1, (-1, size if size >= FEWEST_OF_PART else probs.shape[-1]))
    mass = parts.sum(-1).double()  # rounded as the softmax was
    part, rest = _first_beyond(mass, mass.sum(-1, keepdim=True) * uniform)
    chosen = parts.gather(-2, part[..., None].expand(*part.shape, parts.shape[-1])).squeeze(-2)
    token, _ = _first_beyond(chosen.double(), rest)
    return (part * parts.shape[-1] + token).squeeze(-1)


def _first_beyond(mass: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The first index at which the sums of `mass (..., n)` exceed `wanted (..., 1)`, and how much of it they leave before."""
    sums = mass.cumsum(-1)
    last = sums[..., -1:]
    wanted = wanted.clamp(min=0).minimum(last.nextafter(torch.zeros_like(last)))  # whatever rounding made of it
    index = torch.searchsorted(sums, wanted, right=True).clamp(max=mass.shape[-1] - 1)
    return index, wanted - (sums - mass).gather(-1, index)
