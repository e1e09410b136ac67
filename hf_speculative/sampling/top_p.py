"""Top-p without sorting the vocabulary, on a CPU, where that takes longer than the rest of sampling."""

import math

import torch
from torch import Tensor

from ..hf_compat import logits_process as hf

#: the number of likeliest tokens to search for the cut; where it lies beyond, MORE times as many are searched
NUM_LIKELIEST, MORE = 256, 8
#: sums this close to top-p may fall on its other side in transformers' order of summation, whose error over 262,144 tokens
#: is 8e-7
MARGIN = 5e-6


def top_p(processor: hf.TopPLogitsWarper, scores: Tensor, num_likeliest: int = NUM_LIKELIEST) -> Tensor:
    """What `processor` gives, bit for bit.

    Args:
        scores: `(n, vocab)`.
    """
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_likeliest:
        return processor(None, scores)
    likeliest = scores.topk(num_likeliest).values
    found, is_sure = _cut(processor, scores, likeliest, scores)
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, scores[~is_sure], MORE * num_likeliest)
    return found


def top_k_then_p(top_k: hf.TopKLogitsWarper, processor: hf.TopPLogitsWarper, scores: Tensor) -> Tensor:
    """What `processor` gives after `top_k`, bit for bit: one search for both, and one copy of `scores (n, vocab)`."""
    num_kept, fills = top_k.top_k, {top_k.filter_value, processor.filter_value}
    if scores.device.type != "cpu" or scores.shape[1] < MORE * num_kept or fills != {-math.inf}:
        return top_p(processor, top_k(None, scores))
    likeliest = scores.topk(num_kept + 1).values
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
