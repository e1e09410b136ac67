"""What followed the longest match of a row's last tokens: by brute force, and as the simplest drafter."""

import hf_speculative as hs
from hf_speculative.drafting.suffix.index import MOST_VOTES


def brute_force(documents, context, num_tokens, most=None, least=2):
    """The longest match of `least` tokens or more, and what followed it at most `MOST_VOTES` places."""
    for length in range(min(len(context), most or len(context)), least - 1, -1):
        found = [
            document[i : i + num_tokens]
            for document in documents
            for i in range(length, len(document) + (document is not context))
            if document[i - length : i] == context[-length:]
        ]
        if found:
            return length, found[-MOST_VOTES:]
    return 0, []


class PromptLookup(hs.Drafter):
    """Proposes what followed the longest and most recent match, as a chain."""

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
