"""What users reported of other implementations, each symptom a test."""

import pytest
import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

import hf_speculative as hs
from tests.support import tiny
from tests.support.plain import ours, plain, same_as_plain


def test_the_prompt_passes_in_the_same_shape_as_in_plain_generate(target, draft):
    for batch_size in (1, 3):
        inputs = tiny.prompts(batch_size)
        with tiny.CountForwards(target) as plain_forwards:
            plain(target, inputs)
        with tiny.CountForwards(target) as forwards:
            ours(target, inputs, draft_model=draft)
        assert forwards.lengths[0] == plain_forwards.lengths[0] == (batch_size, 7)


def test_int32_ids(target, draft):
    inputs = {name: value.int() for name, value in tiny.prompts(2).items()}
    assert ours(target, inputs, draft_model=draft).tolist() == plain(target, tiny.prompts(2)).tolist()


def test_learned_positions_where_every_row_is_padded():
    model = tiny.build("gpt2", n_positions=32)
    inputs = {"input_ids": torch.randint(1, 60, (3, 24)), "attention_mask": torch.ones(3, 24, dtype=torch.long)}
    for row, pad in enumerate((16, 19, 22)):
        inputs["attention_mask"][row, :pad] = 0
    for num_draft_tokens in (5, 8):
        same_as_plain(model, inputs, draft_model=tiny.noisy_copy(model), num_draft_tokens=num_draft_tokens)


class Raises(StoppingCriteria, BaseStreamer, hs.Drafter, hs.Schedule, hs.Rule):
    lossless = True

    def __init__(self, error):
        self.error = error

    def __call__(self, *args, **kwargs):
        raise self.error

    put = propose = plan = __call__


@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria", "streamer", "drafter", "schedule", "rule"])
@pytest.mark.parametrize("error", [StopIteration("the user's"), RuntimeError("the user's")], ids=["stop", "other"])
def test_errors_of_the_users_are_shown_as_they_are(target, draft, place, error):
    """A generator may not raise StopIteration, and Python makes another error of it."""
    part = Raises(error)
    if place == "drafter":
        settings = {"draft_model": part}
    elif place in ("schedule", "rule"):
        settings = {"speculative_config": hs.SpeculativeConfig(**{place: part}), "draft_model": draft}
    else:
        settings = {place: part if place == "streamer" else [part], "draft_model": draft}
    with hs.record(), pytest.raises(type(error), match="the user's"):
        ours(target, tiny.prompts(1), **settings)
    same_as_plain(target, tiny.prompts(1), draft_model=draft)  # both models still work
