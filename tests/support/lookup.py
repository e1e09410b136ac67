"""The simplest drafter: what followed the longest and most recent match of a row's last tokens, as a chain."""

import hf_speculative as hs


class PromptLookup(hs.Drafter):
    one_hot_proposals = True

    def __init__(self, max_ngram=3):
        self.max_ngram = max_ngram

    def begin(self, batch, sampler):
        self.vocab_size = sampler.vocab_size

    def propose(self, batch, num_tokens, schedule, sampler):
        return hs.Draft.of(batch, [self._look_up(*pair) for pair in zip(batch.history, num_tokens, strict=True)])

    def _look_up(self, history, num_tokens):
        for size in range(min(self.max_ngram, len(history)), 0, -1):
            for start in range(len(history) - size, 0, -1):
                if history[start - 1 : start - 1 + size] == history[-size:]:
                    found = history[start - 1 + size : start - 1 + size + num_tokens]
                    return [token for token in found if token < self.vocab_size]
        return []
