"""Prompts and settings that `generate_batches` refuses, before the first forward."""

import pytest
import torch

import hf_speculative as hs
from tests.architectures.check import build
from tests.support import tiny

SETTINGS = {
    "batch_size": ({"batch_size": 0}, ValueError, "`batch_size=0` runs no row"),
    "batch_size of another type": ({"batch_size": 2.0}, TypeError, "`batch_size=2.0`"),
    "window": ({"window": 0}, ValueError, "`window=0` reads no prompt"),
    "one text": ({"prompts": "def"}, TypeError, "`prompts` is one str"),
    "one encoding": ({"prompts": {"input_ids": [[1]]}}, TypeError, "`prompts` is one dict"),
    "no iterable": ({"prompts": 3}, TypeError, "pass an iterable"),
    "no length": ({"max_new_tokens": None}, ValueError, "give `max_new_tokens`"),
    "max_length": ({"max_length": 30}, ValueError, "`max_length=30` has no meaning"),
    "streamer": ({"streamer": object()}, ValueError, "iterate over the results"),
    "past_key_values": ({"past_key_values": object()}, ValueError, "starts with its prompt"),
    "inputs_embeds": ({"inputs_embeds": torch.ones(1, 1, 1)}, ValueError, "come as `prompts`"),
    "return_dict": ({"return_dict_in_generate": True}, ValueError, "`return_dict_in_generate=True` has no meaning"),
    "several sequences": ({"num_return_sequences": 2}, ValueError, "as often as you want"),
    "a draft option": ({"num_draft_tokens": 3, "draft_model": None}, ValueError, "without a draft"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_refused_at_once(target, draft, name):
    given, error, message = SETTINGS[name]
    kwargs = {"prompts": [[1, 2], [3]], "max_new_tokens": 4, "draft_model": draft} | given
    with tiny.refused(target, message, error):
        hs.generate_batches(target, **kwargs)


@pytest.mark.parametrize(("name", "value"), [("num_return_sequences", 2), ("max_time", 0.1), ("token_healing", True)])
def test_settings_of_the_model_are_refused_as_well(name, value):
    model = tiny.llama()
    model.generation_config.update(do_sample=True, **{name: value})
    with pytest.raises(ValueError, match=f"`{name}={value}` has no meaning"):
        hs.generate_batches(model, [[1, 2], [3]], max_new_tokens=4)


BAD_PROMPTS = {
    "empty": ([], ValueError, "prompt 1 is empty"),
    "text": ("abc", ValueError, "prompt 1 is a text: pass `tokenizer=`"),
    "messages": ([{"role": "user", "content": "x"}], ValueError, "prompt 1 is messages: pass `tokenizer=`"),
    "too long": ([1] * 129, ValueError, "prompt 1 has 129 tokens, but the model has 128"),
    "an id too large": ([1, 999, 2], ValueError, "prompt 1 holds the id 999.* embeddings for 0 to 60"),
    "two rows": (torch.ones(2, 2, dtype=torch.long), ValueError, r"shape \(2, 2\): pass 1-D ids"),
    "an encoding of two rows": ({"input_ids": [[1, 2], [3, 4]]}, ValueError, "prompt 1 holds 2 rows"),
    "floats": (torch.ones(2), ValueError, "float32 tensor"),
    "an image": ({"input_ids": [1], "pixel_values": 0}, ValueError, "'pixel_values'"),
    "a hole": ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, ValueError, "hides more than padding"),
    "no prompt": (None, TypeError, "prompt 1 is of type NoneType"),
}


def test_ids_that_an_encoder_does_not_know():
    model = build("seq2seq", "t5")
    with pytest.raises(ValueError, match="prompt 1 holds the id 999"):
        list(hs.generate_batches(model, [[1, 2], [999]], prompt_lookup_num_tokens=2, max_new_tokens=4))


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_prompts_are_refused_before_the_first_forward(target, draft, name):
    prompt, error, message = BAD_PROMPTS[name]
    with tiny.refused(target, message, error):
        list(hs.generate_batches(target, [[1, 2], prompt], draft_model=draft, max_new_tokens=4))
