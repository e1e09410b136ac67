"""What follows the longest and most recent match of the last tokens."""

import torch

import hf_speculative as hs
from hf_speculative.drafting import Ngrams, TreeDrafter
from hf_speculative.drafting.ngrams import NgramIndex
from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.sampling.samplers import Greedy
from hf_speculative.schedules import Constant
from tests.support import tiny
from tests.support.lookup import PromptLookup
from tests.support.plain import ours, plain


def test_prompt_lookup_takes_the_longest_and_most_recent_match():
    lookup = PromptLookup(max_ngram=3)
    lookup.vocab_size, lookup.indices = 100, {0: NgramIndex(3)}
    history = [1, 2, 3, 50, 9, 2, 3, 60, 8, 2, 3]
    assert lookup._look_up(0, history, 2) == [60, 8], "of two matches of (2, 3) the later one"
    history += [50, 1, 2, 3]
    assert lookup._look_up(0, history, 1) == [50], "(1, 2, 3) is longer than the later (2, 3)"
    assert lookup._look_up(0, [*history, 77], 3) == []
    assert lookup._look_up(0, history, 0) == []


def test_rows_that_are_copied_or_wait_have_ngrams_of_their_own():
    batch = hs.Batch(torch.tensor([[1, 2, 1], [3, 4, 3]]), [0, 0], max_length=20)
    proposer = Ngrams(2)
    proposer.begin(batch, vocab_size=10)
    for lane, text in enumerate(batch.history):
        proposer.place_after(lane, text)
    proposer.select([1, 1, 0])

    def guessed(lane, text):
        place = proposer.place_after(lane, text)
        return place and proposer.children(place)[0][1]

    assert [guessed(lane, text) for lane, text in enumerate([[3, 4, 3], [3, 4, 3, 5, 3], [1, 2, 1]])] == [4, 5, 2]
    assert guessed(0, [3, 4, 3]) == 4, "the copy's text is not the original's"
    proposer.admit(batch.part([0]), [2])
    assert guessed(2, [7, 8]) is None and guessed(2, [7, 8, 7]) == 8


def test_prompt_lookup_without_eos(target):
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11, 7, 8]])}
    found = ours(target, inputs, prompt_lookup_num_tokens=3)
    assert found.tolist() == plain(target, inputs).tolist()


def test_its_guesses_are_the_tokens_that_it_copies():
    batch = hs.Batch(torch.tensor([[1, 2, 3, 50, 9, 2, 3, 60, 8, 2, 3]]), [0], max_length=40)
    drafter = TreeDrafter([Ngrams(3)])
    sampler = Greedy(Processors([], 1), vocab_size=100)
    drafter.begin(batch, sampler)
    for most in (2, 9):
        lookup = PromptLookup(3)
        lookup.begin(batch, sampler)
        found = drafter.propose(batch, [most], Constant(most), sampler).tokens.tolist()
        assert found == lookup.propose(batch, [most], Constant(most), sampler).tokens.tolist()


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
