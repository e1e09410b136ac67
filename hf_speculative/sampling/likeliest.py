"""Top-k and top-p by the likeliest tokens alone, on a CPU, where sorting a vocabulary takes longer than the rest of it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..hf_compat import logits_process as hf
from ..types import Few

#: the number of likeliest tokens to search for the cut; where it lies beyond, MORE times as many are searched
NUM_LIKELIEST, MORE = 256, 8
#: sums this close to top-p may fall on its other side in transformers' order of summation, whose error over 262,144 tokens
#: is 8e-7
MARGIN = 5e-6
#: rows whose probabilities are added at a time, in memory that is used again
ROWS = 4
#: tokens of a part of the vocabulary, of which those with the largest maxima are searched, and the fewest parts for each token
#: that is looked for, so that it pays
SIZE_OF_PART, FEWEST_PARTS = 32, 8
#: of equal scores at a cut in half precision, how many are looked at, and the largest share of a vocabulary to be called few
NUM_EQUAL, LARGEST_SHARE = 32, 1 / 8


def largest(scores: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """What `scores.topk(num)` gives; of equal ones, others may be chosen.

    Args:
        scores: `(n, vocab)`.
    """
    size, num_parts = SIZE_OF_PART, scores.shape[1] // SIZE_OF_PART
    if num_parts < FEWEST_PARTS * num:
        return scores.topk(num)
    parts, rest = scores[:, : num_parts * size].unflatten(1, (num_parts, size)), scores[:, num_parts * size :]
    chosen = parts.amax(2).topk(num).indices
    ids = (chosen[..., None] * size + torch.arange(size)).flatten(1)
    ids = torch.cat([ids, torch.arange(num_parts * size, scores.shape[1]).expand(len(scores), -1)], 1)
    found = torch.cat([parts.gather(1, chosen[..., None].expand(-1, -1, size)).flatten(1), rest], 1).topk(num)
    return found.values, ids.gather(1, found.indices)


def few_of(scaling: Sequence, filters: Sequence, logits: Tensor, of_whole: Callable[[Tensor], Tensor]) -> Few | None:
    """What temperatures and then `filters`, top-k, top-p or both in this order, leave of `logits (n, vocab)`, bit for bit.

    `None` where that may be more than few, and where a row may have no distribution.

    Args:
        of_whole: gives the scores of rows in which equal scores, rounding or unlikely tokens decide.
    """
    (num_rows, vocab_size), num_likeliest = logits.shape, NUM_LIKELIEST
    if is_by_top_k := type(filters[0]) is hf.TopKLogitsWarper:
        # Of equally likely ones, top-k keeps all; in half precision there are some at most cuts.
        num_likeliest = filters[0].top_k + (1 if logits.dtype == torch.float32 else NUM_EQUAL)
    are_few = (num_rows if is_by_top_k else 1) * num_likeliest <= LARGEST_SHARE * vocab_size
    if logits.device.type != "cpu" or not are_few or any(one.filter_value != -math.inf for one in filters):
        return None
    likeliest, ids = largest(logits, num_likeliest)
    if not bool(likeliest.isfinite().all()):
        return None
    scores, is_sure = _filtered(scaling, filters, logits, likeliest)
    is_left, rest, others = (scores > -math.inf) & is_sure[:, None], None, []
    if not bool(is_sure.all()):
        rest = of_whole(logits[~is_sure])
        if not bool(rest.amax(1).isfinite().all()):  # a temperature near 0 makes infinities
            return None
        others = [(rest > -math.inf).any(0).nonzero()[:, 0]]
    own = torch.cat([ids[is_left], *others]).unique()
    if len(own) > LARGEST_SHARE * vocab_size:
        return None
    values = scores.new_full((num_rows, len(own) + 1), -math.inf)
    values.scatter_(1, torch.searchsorted(own, ids).where(is_left, len(own)), scores.where(is_left, -math.inf))
    if rest is not None:
        values[~is_sure, :-1] = rest[:, own]
    return Few(values, own, vocab_size)


def _filtered(scaling: Sequence, filters: Sequence, logits: Tensor, likeliest: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the `likeliest` tokens `(n, m)`, -inf where filtered, and of which rows it is certain."""

    def scaled(scores: Tensor) -> Tensor:
        for processor in scaling:
            scores = processor(None, scores)
        return scores

    scores = likeliest = scaled(likeliest.float())
    is_sure = likeliest.isfinite().all(1)
    if type(filters[0]) is hf.TopKLogitsWarper:
        scores = filters[0](None, likeliest)
        is_sure &= scores[:, -1] == -math.inf
    if type(filters[-1]) is hf.TopPLogitsWarper:
        mass = _mass(scores, scores[:, :1])
        if len(filters) == 1:
            rows = zip(logits.split(ROWS), likeliest[:, :1].split(ROWS), strict=True)
            mass = torch.cat([_mass(scaled(some.float()), highest) for some, highest in rows])
        scores, is_known = _cut(filters[-1], scores, scores, mass)
        is_sure &= is_known
    return scores, is_sure


def top_p(processor: hf.TopPLogitsWarper, scores: Tensor, num_likeliest: int = NUM_LIKELIEST) -> Tensor:
    """What `processor` gives, bit for bit.

    Args:
        scores: `(n, vocab)`.
    """
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_likeliest:
        return processor(None, scores)
    likeliest, _ = largest(scores, num_likeliest)
    found, is_sure = _cut(processor, scores, likeliest, _mass(scores, likeliest[:, :1]))
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, scores[~is_sure], MORE * num_likeliest)
    return found


def top_k_then_p(top_k: hf.TopKLogitsWarper, processor: hf.TopPLogitsWarper, scores: Tensor) -> Tensor:
    """What `processor` gives after `top_k`, bit for bit: one search for both, and one copy of `scores (n, vocab)`."""
    num_kept, fills = top_k.top_k, {top_k.filter_value, processor.filter_value}
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_kept or fills != {-math.inf}:
        return top_p(processor, top_k(None, scores))
    likeliest, _ = largest(scores, num_kept + 1)
    found, is_sure = _cut(processor, scores, likeliest, _mass(likeliest[:, :-1], likeliest[:, :1]))
    is_sure &= likeliest[:, -2] > likeliest[:, -1]  # of equally likely ones, top-k keeps all
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, top_k(None, scores[~is_sure]))
    return found


def _mass(scores: Tensor, highest: Tensor) -> Tensor:
    """The sum `(n, 1)` of what `scores (n, ...)` are the logarithms of, over that of the highest one."""
    return (scores - highest).exp_().sum(-1, keepdim=True)


def _cut(processor: hf.TopPLogitsWarper, scores: Tensor, likeliest: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """`scores` filled below the cut, and of which rows it is certain.

    Args:
        likeliest: `(n, m)` the highest scores, in order.
        mass: `_mass` of all tokens that have a probability.
    """
    probs = ((likeliest - likeliest[:, :1]).exp() / mass).double()
    before = probs.cumsum(-1) - probs
    num_kept = (before < processor.top_p).sum(-1, keepdim=True).clamp(min=processor.min_tokens_to_keep)
    last, next_one = (likeliest.gather(-1, (num_kept - 1 + i).clamp(max=likeliest.shape[1] - 1)) for i in range(2))
    # Of tokens that are equally likely, transformers may keep some; nothing is larger than NaN.
    is_sure = ((before - processor.top_p).abs() > MARGIN).all(-1) & (last > next_one).squeeze(-1)
    return torch.where(scores < last, processor.filter_value, scores), is_sure  # a filled copy takes twice as long
