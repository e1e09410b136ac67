"""Prompt lookup, under both of its names."""

import torch

import hf_speculative as hs
from tests.support import tiny
from tests.support.plain import ours, plain


def test_prompt_lookup_without_eos(target):
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11, 7, 8]])}
    found = ours(target, inputs, prompt_lookup_num_tokens=3)
    assert found.tolist() == plain(target, inputs).tolist()


def test_it_has_the_name_that_vllm_gives_it(target):
    call = tiny.prompts(2, width=12) | {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    counts = []
    for options in (
        {"prompt_lookup_num_tokens": 4, "num_assistant_tokens_schedule": "constant"},
        {"draft_model": "ngram", "num_draft_tokens": 4},
    ):
        with hs.record() as stats:
            assert (
                hs.generate(target, **call, **options, max_matching_ngram_size=2).tolist()
                == target.generate(**call).tolist()
            )
        counts.append((stats.num_target_forwards, stats.num_draft_tokens))
    assert counts[0] == counts[1]
