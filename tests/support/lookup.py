"""The simplest drafter: what followed the longest and most recent match of a row's last tokens, as a chain."""

from collections import defaultdict

import hf_speculative as hs
from hf_speculative.drafting.ngrams import NgramIndex


class PromptLookup(hs.Drafter):
    one_hot_proposals = True

    def __init__(self, max_ngram=3):
        self.max_ngram = max_ngram

    def begin(self, batch, sampler):
        self.vocab_size = sampler.vocab_size
        self.indices = defaultdict(lambda: NgramIndex(self.max_ngram))

    def propose(self, batch, num_tokens, schedule, sampler):
        return hs.Draft.of(
            batch, [self._look_up(row, batch.history[b], num_tokens[b]) for b, row in enumerate(batch.rows)]
        )

    def _look_up(self, row, history, num_tokens):
        if num_tokens == 0:
            return []
        start, _ = self.indices[row].last_match(history)
        return [t for t in history[start : start + num_tokens] if t < self.vocab_size]
