"""Top-k and top-p by the likeliest tokens alone, on a CPU, where sorting a vocabulary takes longer than the rest of it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..hf_compat import logits_process as hf
from ..types import Few

#: the number of likeliest tokens to search for the cut; where it lies beyond, MORE times as many are searched
NUM_LIKELIEST, MORE = 256, 8
#: sums this close to top-p may fall on its other side in transformers' order of summation, whose error over 262,144 tokens
#: is 8e-7
MARGIN = 5e-6
#: tokens of a part of the vocabulary, of which only those with the largest maxima are searched
SIZE_OF_PART = 64
#: of equal scores at a cut in half precision, how many are looked at, and the largest share of a vocabulary to be called few
NUM_EQUAL, LARGEST_SHARE = 32, 0.25


def likeliest_of(scores: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """What `scores.topk(num)` gives; of equal ones, others may be chosen.

    Args:
        scores: `(n, vocab)`.
    """
    size = SIZE_OF_PART
    if scores.shape[1] // size < 2 * num:
        return scores.topk(num)
    num_parts = scores.shape[1] // size
    parts, rest = scores[:, : num_parts * size].unflatten(1, (num_parts, size)), scores[:, num_parts * size :]
    chosen = parts.amax(2).topk(num).indices
    ids = (chosen[..., None] * size + torch.arange(size)).flatten(1)
    ids = torch.cat([ids, torch.arange(num_parts * size, scores.shape[1]).expand(len(scores), -1)], 1)
    found = torch.cat([parts.gather(1, chosen[..., None].expand(-1, -1, size)).flatten(1), rest], 1).topk(num)
    return found.values, ids.gather(1, found.indices)


def few_by_top_k(scaling: Sequence, filters: Sequence, logits: Tensor) -> Few | None:
    """What temperatures and then `filters`, top-k or top-k and top-p, leave of `logits (n, vocab)`, bit for bit.

    `None` where more than few may be left, or where equal scores or rounding decide.
    """
    top_k, num_kept = filters[0], filters[0].top_k
    fills = {processor.filter_value for processor in filters}
    if logits.device.type != "cpu" or logits.shape[1] < MORE * num_kept or fills != {-math.inf}:
        return None
    # Of equally likely ones, top-k keeps all; in half precision there are some at most cuts.
    num_equal = 1 if logits.dtype == torch.float32 else NUM_EQUAL
    found, ids = likeliest_of(logits, num_kept + num_equal)
    found = found.float()
    for processor in scaling:
        found = processor(None, found)
    is_sure = found.isfinite().all(1) & (found[:, -1] < found[:, num_kept - 1])
    scores = top_k(None, found)
    if len(filters) > 1:
        scores, is_known = _cut(filters[1], scores, scores, scores)
        is_sure &= is_known
    is_left = scores > -math.inf
    own = ids[is_left].unique()
    if not bool(is_sure.all()) or len(own) > LARGEST_SHARE * logits.shape[1]:
        return None
    values = scores.new_full((len(scores), len(own) + 1), -math.inf)
    places = torch.searchsorted(own, ids).where(is_left, len(own))
    return Few(values.scatter_(1, places, scores), own, logits.shape[1])


def top_p(processor: hf.TopPLogitsWarper, scores: Tensor, num_likeliest: int = NUM_LIKELIEST) -> Tensor:
    """What `processor` gives, bit for bit.

    Args:
        scores: `(n, vocab)`.
    """
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_likeliest:
        return processor(None, scores)
    likeliest, _ = likeliest_of(scores, num_likeliest)
    found, is_sure = _cut(processor, scores, likeliest, scores)
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, scores[~is_sure], MORE * num_likeliest)
    return found


def top_k_then_p(top_k: hf.TopKLogitsWarper, processor: hf.TopPLogitsWarper, scores: Tensor) -> Tensor:
    """What `processor` gives after `top_k`, bit for bit: one search for both, and one copy of `scores (n, vocab)`."""
    num_kept, fills = top_k.top_k, {top_k.filter_value, processor.filter_value}
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_kept or fills != {-math.inf}:
        return top_p(processor, top_k(None, scores))
    likeliest, _ = likeliest_of(scores, num_kept + 1)
    found, is_sure = _cut(processor, scores, likeliest, likeliest[:, :-1])
    is_sure &= likeliest[:, -2] > likeliest[:, -1]  # of equally likely ones, top-k keeps all
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, top_k(None, scores[~is_sure]))
    return found


def _cut(processor: hf.TopPLogitsWarper, scores: Tensor, likeliest: Tensor, possible: Tensor) -> tuple[Tensor, Tensor]:
    """`scores` filled below the cut, and of which rows it is certain.

    Args:
        likeliest: `(n, m)` the highest scores, in order.
        possible: `(n, ...)` the scores of all tokens that have a probability.
    """
    highest = likeliest[:, :1]
    probs = ((likeliest - highest).exp() / (possible - highest).exp().sum(-1, keepdim=True)).double()
    before = probs.cumsum(-1) - probs
    num_kept = (before < processor.top_p).sum(-1, keepdim=True).clamp(min=processor.min_tokens_to_keep)
    last, next_one = (likeliest.gather(-1, (num_kept - 1 + i).clamp(max=likeliest.shape[1] - 1)) for i in range(2))
    # Of tokens that are equally likely, transformers may keep some; nothing is larger than NaN.
    is_sure = ((before - processor.top_p).abs() > MARGIN).all(-1) & (last > next_one).squeeze(-1)
    return torch.where(scores < last, processor.filter_value, scores), is_sure  # a filled copy takes twice as long
