"""Top-p without sorting the vocabulary, on a CPU, where that takes longer than the rest of sampling."""

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
    probs = (likeliest - scores.logsumexp(-1, keepdim=True)).exp().double()
    before = probs.cumsum(-1) - probs
    num_kept = (before < processor.top_p).sum(-1, keepdim=True).clamp(min=processor.min_tokens_to_keep)
    last, next_one = (likeliest.gather(-1, (num_kept - 1 + i).clamp(max=num_likeliest - 1)) for i in range(2))
    # Of tokens that are equally likely, transformers may keep some; nothing is larger than NaN.
    is_sure = ((before - processor.top_p).abs() > MARGIN).all(-1) & (last > next_one).squeeze(-1)
    found = scores.masked_fill(scores < last, processor.filter_value)
    if not bool(is_sure.all()):
        found[~is_sure] = top_p(processor, scores[~is_sure], MORE * num_likeliest)
    return found
