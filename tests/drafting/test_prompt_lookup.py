"""What follows the longest and most recent match of the last tokens."""

import torch

import hf_speculative as hs
from hf_speculative.drafting import PromptLookup
from tests.support import tiny
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


def test_it_has_the_name_that_vllm_gives_it(target):
    call = tiny.prompts(2, width=12) | {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    counts = []
    for options in (
        {"prompt_lookup_num_tokens": 4, "num_assistant_tokens_schedule": "constant"},
        {"method": "ngram", "num_draft_tokens": 4},
    ):
        with hs.record() as stats:
            assert (
                hs.generate(target, **call, **options, max_matching_ngram_size=2).tolist()
                == target.generate(**call).tolist()
            )
        counts.append((stats.num_target_forwards, stats.num_draft_tokens))
    assert counts[0] == counts[1]
