"""What follows the longest and most recent match of the last tokens."""

import torch

from hf_speculative.drafting import PromptLookup
from tests.support.plain import ours, plain


def test_prompt_lookup_takes_the_longest_and_most_recent_match():
    lookup = PromptLookup(max_ngram=3)
    lookup.vocab_size, lookup.indices, lookup.num_indexed = 100, {0: {}}, {0: 0}
    history = [1, 2, 3, 50, 9, 2, 3, 60, 8, 2, 3]
    assert lookup._look_up(0, history, 2) == [60, 8], "of two matches of (2, 3) the later one"
    history += [50, 1, 2, 3]
    assert lookup._look_up(0, history, 1) == [50], "(1, 2, 3) is longer than the later (2, 3)"
    assert lookup._look_up(0, [*history, 77], 3) == []
    assert lookup._look_up(0, history, 0) == []


def test_prompt_lookup_without_eos(target):
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11, 7, 8]])}
    found = ours(target, inputs, prompt_lookup_num_tokens=3)
    assert found.tolist() == plain(target, inputs).tolist()
