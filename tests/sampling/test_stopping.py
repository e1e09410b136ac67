"""Stops: inside a block, by row, by the user's own criteria, each asked about every token once."""

import numpy as np
import pytest
import torch
from transformers import MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList, StopStringCriteria

import hf_speculative as hs
from hf_speculative.sampling.stopping import CriteriaStopping
from tests.support import tiny
from tests.support.plain import NEW, Collect, LastToken, agrees, ours, plain, same_as_plain


@pytest.mark.parametrize("as_list", [False, True])
def test_eos_inside_an_accepted_block(target, twin, as_list):
    inputs = tiny.prompts(1)
    new = plain(target, inputs)[0, 7:].tolist()
    for position in range(1, 9):
        eos = [1, new[position]] if as_list else new[position]
        same_as_plain(target, inputs, {"eos_token_id": eos}, draft_model=twin, num_draft_tokens=6)


def test_a_users_criterion_inside_an_accepted_block(target, twin):
    inputs = tiny.prompts(1)
    token = plain(target, inputs)[0, 9].item()
    criterion, streamer = LastToken(token), Collect()
    expected = plain(target, inputs, stopping_criteria=StoppingCriteriaList([LastToken(token)]))
    settings = {"draft_model": twin, "num_draft_tokens": 6, "stopping_criteria": StoppingCriteriaList([criterion])}
    found = ours(target, inputs, **settings, streamer=streamer)
    assert found.tolist() == expected.tolist() and found.shape[1] < 7 + NEW
    assert torch.cat([piece.flatten() for piece in streamer.pieces]).tolist() == found[0].tolist()
    assert streamer.ended and criterion.calls == list(range(8, found.shape[1] + 1))


@pytest.mark.filterwarnings("ignore:__array_wrap__")
@pytest.mark.parametrize("answer", [lambda is_over, n: torch.tensor([is_over]), lambda is_over, n: np.full(n, is_over)])
def test_answers_that_plain_generate_broadcasts(target, twin, answer):
    class Over(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return answer(input_ids.shape[1] >= 15, len(input_ids))

    inputs = tiny.prompts(3)
    expected = plain(target, inputs, stopping_criteria=[Over()])
    found = ours(target, inputs, stopping_criteria=[Over()], draft_model=twin, num_draft_tokens=3)
    assert found.tolist() == expected.tolist() and found.shape[1] == 15


@pytest.mark.parametrize("path", ["ragged", "universal"])
def test_a_maximum_that_the_prompt_has_reached(path):
    """Of the user's own, which takes the place of transformers': one token follows, as in plain `generate`."""
    target = tiny.build("gpt2")  # whose tokens depend on positions
    inputs, settings = tiny.prompts(8, width=12), {"stopping_criteria": [MaxLengthCriteria(5)]}
    settings |= {"prefill_chunk_size": 4} if path == "universal" else {}
    expected = plain(target, inputs, **settings)
    found = ours(target, inputs, **settings, draft_model=tiny.noisy_copy(target), num_draft_tokens=3)
    assert found.tolist() == expected.tolist() and found.shape[1] == 13


class AtLengths(StoppingCriteria):
    """Row i ends at `lengths[i]` columns, or later if it is asked too late."""

    def __init__(self, lengths):
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] == self.lengths[: len(input_ids)]


@pytest.mark.parametrize("lengths", [[9, 20, 12], [20, 9, 9], [9, 9, 9], [9, 99, 12]])
@pytest.mark.parametrize("path", ["ragged", "universal"])
def test_rows_write_on_where_there_is_no_end_token(target, twin, lengths, path):
    """Plain `generate` has nothing to fill up with then: rows that met their stop go on until the last one has."""
    inputs, streamer = tiny.prompts(3), Collect()
    chunks = {"prefill_chunk_size": 4} if path == "universal" else {}
    kwargs = chunks | {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    kwargs |= inputs | {"do_sample": False, "max_new_tokens": NEW}
    expected = target.generate(**kwargs, stopping_criteria=[AtLengths(lengths)])
    kwargs |= {"draft_model": twin, "num_draft_tokens": 5, "streamer": streamer}
    found = hs.generate(target, **kwargs, stopping_criteria=[AtLengths(lengths)])
    assert expected.sequences.shape[1] == min(max(lengths), 7 + NEW)
    assert found.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(found[name]), torch.stack(expected[name]), rtol=1e-3, atol=1e-4)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    assert found.from_draft.shape[1] == found.sequences.shape[1] - 7
    assert torch.stack(streamer.pieces[1:], 1).tolist() == found.sequences[:, 7:].tolist()


def test_stop_strings_without_an_end_token():
    target, draft, tokenizer = hs.embedded_pair()
    texts = ["def add(a, b):\n", "import os, sys\n"]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True, padding_side="left"))
    kwargs = {"stop_strings": ["self", "import"], "tokenizer": tokenizer, "max_new_tokens": 48, "do_sample": False}
    kwargs |= {"eos_token_id": None, "pad_token_id": None}
    target.generation_config.eos_token_id = None
    agrees(target, inputs | kwargs, draft_model=draft)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_stop_strings(batch_size):
    target, draft, tokenizer = hs.embedded_pair()
    texts = ["def add(a, b):\n", "import os, sys\n\n", "class A:\n    x = 1\n"][:batch_size]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True, padding_side="left"))
    kwargs = {"stop_strings": ["\n\n", "self.", "rn"], "tokenizer": tokenizer, "max_new_tokens": 48, "do_sample": False}
    assert target.generate(**inputs, **kwargs).shape[1] < inputs["input_ids"].shape[1] + 48
    agrees(target, inputs | kwargs, draft_model=draft, num_draft_tokens=6)


def test_stop_strings_from_the_generation_config():
    target, draft, tokenizer = hs.embedded_pair()
    target.generation_config.stop_strings = [":\n"]
    ids = tokenizer("def add(a, b", return_tensors="pt").input_ids
    call = {"inputs": ids, "tokenizer": tokenizer, "max_new_tokens": 40, "do_sample": False}
    agrees(target, call, draft_model=draft)
    assert target.generation_config.stop_strings == [":\n"]
    with pytest.raises(ValueError, match="pass `tokenizer=`"):
        hs.generate(target, ids, draft_model=draft)


@pytest.mark.filterwarnings("ignore:A custom stopping criteria")
def test_a_criterion_of_the_users_takes_the_place_of_stop_strings():
    target, draft, tokenizer = hs.embedded_pair()
    ids = tokenizer("def add(a, b", return_tensors="pt").input_ids
    call = {"inputs": ids, "tokenizer": tokenizer, "max_new_tokens": 24, "do_sample": False}
    first = tokenizer.decode(target.generate(**call)[0, ids.shape[1] + 4])
    call |= {"stop_strings": [first], "stopping_criteria": StoppingCriteriaList([StopStringCriteria(tokenizer, ["§"])])}
    agrees(target, call, draft_model=draft, num_draft_tokens=3)
    assert target.generate(**call).shape[1] == ids.shape[1] + 24


def test_max_time_stops(target, draft):
    assert ours(target, tiny.prompts(1), draft_model=draft, max_time=0.0).shape[1] == 8


def test_scores_are_kept_once(target, draft, monkeypatch):
    """For criteria, which see them as large as plain `generate`'s: by row, token and row."""
    kept, ask = [], CriteriaStopping._ask_others

    def noted(self, *args):
        answer = ask(self, *args)
        kept.append(sum(step.untyped_storage().nbytes() for steps in self.scores.values() for step in steps[:-1]))
        return answer

    monkeypatch.setattr(CriteriaStopping, "_ask_others", noted)
    settings = {"stopping_criteria": [lambda ids, scores, **kwargs: torch.zeros(len(ids), dtype=torch.bool)]}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    found = ours(target, tiny.prompts(5), **settings, draft_model=draft, num_draft_tokens=3)
    assert 0 < max(kept) <= 4 * tiny.VOCAB * found.sequences.numel()
