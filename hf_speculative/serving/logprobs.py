"""Log-probabilities of tokens by the model itself, before temperature and all other processors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..hf_compat import CACHE
from ..models import device_of

#: positions of a prompt in one pass
CHUNK = 256


class Logprob(NamedTuple):
    """The log-probability of a token, and the likeliest tokens at its position with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


def logprobs_of(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[Logprob]:
    """Log-probabilities of `tokens`, one for each row of `logits (n, vocab)`."""
    scores = logits.float().log_softmax(-1)
    own = scores.gather(1, torch.tensor([tokens], device=scores.device).T)[:, 0].tolist()
    values, ids = scores.topk(num_top, -1)
    likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [Logprob(*found) for found in zip(tokens, own, likeliest, strict=True)]


@torch.no_grad()
def logprobs_of_prompt(model: PreTrainedModel, prompt: Sequence[int], num_top: int) -> list[Logprob]:
    """Log-probabilities of a prompt's tokens except the first. Logits of at most `CHUNK` positions are in memory."""
    ids = torch.tensor([list(prompt)], device=device_of(model))
    cache, found = DynamicCache(config=model.config), []
    for start in range(0, len(prompt) - 1, CHUNK):
        following = prompt[start + 1 : start + 1 + CHUNK]
        columns = ids[:, start : start + len(following)]
        logits = model(input_ids=columns, **{CACHE: cache}, use_cache=True).logits[0]
        found += logprobs_of(logits, following, num_top)
    return found
