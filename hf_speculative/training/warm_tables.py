"""Make warm tables of a target: its answers, and the likeliest successors of their tokens."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..distillation.teacher import Example
from ..drafting.proposers import NUM_SUCCESSORS
from ..drafting.suffix.store import SuffixStore
from ..drafting.tables import Tables
from ..models import device_of, num_logits, without_dropout

#: the likeliest tokens of a position that count
CANDIDATES = 8


@torch.no_grad()
def learn_tables(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Example],
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Tables:
    """Read each answer once, with the target.

    A successor's weight is the sum of its probabilities, under the target, over all places where its token stands.
    """
    examples, vocab_size = list(examples), num_logits(target)
    store = SuffixStore(tokenizer, max_tokens=max(2, sum(len(one.new_ids) + 1 for one in examples)))
    pairs: list[Tensor] = []
    chances: list[Tensor] = []
    for number, example in enumerate(examples, start=1):
        ids = torch.tensor([[*example.prompt_ids, *example.new_ids]], device=device_of(target))
        start = max(0, len(example.prompt_ids) - 1)
        with without_dropout(target):
            logits = target(input_ids=ids, use_cache=False).logits[0, start:].float()
        probs, likeliest = logits.softmax(-1).topk(CANDIDATES)
        pairs.append((ids[0, start:, None] * vocab_size + likeliest).flatten().cpu())
        chances.append(probs.flatten().cpu())
        store.add(example.new_ids)
        watch(number, len(examples))
    return Tables(store, _best(torch.cat(pairs), torch.cat(chances), vocab_size))


def _best(pairs: Tensor, chances: Tensor, vocab_size: int) -> np.ndarray:
    """The successors `(vocab, NUM_SUCCESSORS)` of the largest sums.

    Args:
        pairs: `(n,)` int64, a token times `vocab_size` plus its successor.
        chances: `(n,)`.
    """
    unique, places = pairs.unique(return_inverse=True)
    sums = torch.zeros(len(unique)).index_add_(0, places, chances)
    by_weight = sums.argsort(descending=True)
    order = by_weight[(unique[by_weight] // vocab_size).argsort(stable=True)]
    tokens, successors = (unique[order] // vocab_size).numpy(), (unique[order] % vocab_size).numpy()
    ranks = np.arange(len(tokens)) - np.searchsorted(tokens, tokens)
    table, is_kept = np.full((vocab_size, NUM_SUCCESSORS), -1, dtype=np.int32), ranks < NUM_SUCCESSORS
    table[tokens[is_kept], ranks[is_kept]] = successors[is_kept]
    return table
