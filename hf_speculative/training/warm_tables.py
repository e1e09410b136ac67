"""Make warm tables of a target: its answers, and the likeliest successors of their tokens."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import nlargest

import numpy as np
import torch
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
    weights: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number, example in enumerate(examples, start=1):
        ids = torch.tensor([[*example.prompt_ids, *example.new_ids]], device=device_of(target))
        start = max(0, len(example.prompt_ids) - 1)
        with without_dropout(target):
            logits = target(input_ids=ids, use_cache=False).logits[0, start:].float()
        probs, likeliest = logits.softmax(-1).topk(CANDIDATES)
        for token, successors, chances in zip(ids[0, start:].tolist(), likeliest.tolist(), probs.tolist(), strict=True):
            for successor, chance in zip(successors, chances, strict=True):
                weights[token][successor] += chance
        store.add(example.new_ids)
        watch(number, len(examples))
    table = np.full((vocab_size, NUM_SUCCESSORS), -1, dtype=np.int32)
    for token, of_token in weights.items():
        best = nlargest(NUM_SUCCESSORS, of_token, key=of_token.__getitem__)
        table[token, : len(best)] = best
    return Tables(store, table)
