"""Prompts for any model type, without a tokenizer or processor: rows of unequal length, padded as those would pad them.

Every row of an image or audio prompt has one image or recording, its placeholder tokens and some text. How many
placeholders there must be is what the model's own `get_image_features` or `get_audio_features` gives.
"""

from __future__ import annotations

import inspect

import torch

from .media import audio_inputs, image_inputs

#: text tokens are drawn from here, clear of special tokens, which `configs.py` puts at the vocabulary's end
FIRST_TEXT, LAST_TEXT = 3, 60
WIDTH = 7


def prompts(mapping: str, model, batch_size: int, seed: int = 0) -> dict:
    """What `generate` takes; the first row is the longest."""
    generator, kind = torch.Generator().manual_seed(seed), model.config.model_type
    if mapping == "causal" or (mapping == "seq2seq" and not hears(model)):
        side = "right" if model.config.is_encoder_decoder else "left"
        return text(batch_size, generator, side)
    if mapping == "image-text":
        media, token, feature_function = (
            image_inputs(model, batch_size, generator),
            image_token(model),
            "get_image_features",
        )
    else:
        media, token, feature_function = (
            audio_inputs(model, batch_size, generator),
            audio_token(model),
            "get_audio_features",
        )
    if not media:
        return text(batch_size, generator)
    if model.config.is_encoder_decoder and token is None:
        return media if mapping == "speech" else media | text(batch_size, generator, "right")
    return media | placeholders(
        model, text(batch_size, generator), token, num_features(model, feature_function, media, batch_size)
    )


def hears(model) -> bool:
    """A decoder-only model with audio inputs, which transformers lists among the sequence-to-sequence ones."""
    return not model.config.is_encoder_decoder


def text(batch_size: int, generator, padding_side: str = "left", width: int = WIDTH) -> dict:
    """Random tokens; row b is 2b tokens shorter than the first."""
    ids = torch.randint(FIRST_TEXT, LAST_TEXT, (batch_size, width), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(batch_size):
        if padding_side == "left":
            mask[row, : 2 * row] = 0
        else:
            mask[row, width - 2 * row :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def placeholders(model, inputs: dict, token: int | None, count: int) -> dict:
    """The text with `count` placeholders in each row, before its last two tokens."""
    if token is None or not count:
        return inputs
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    marks = [first_of(model.config, names) for names in (BEGIN_NAMES, END_NAMES)]
    row = [mark for mark in marks[:1] if mark] + [token] * count + [mark for mark in marks[1:] if mark]
    middle = torch.tensor(row).expand(len(ids), -1)
    ids = torch.cat([ids[:, :-2], middle, ids[:, -2:]], 1)
    mask = torch.cat([mask[:, :-2], torch.ones_like(middle), mask[:, -2:]], 1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    # Which tokens are an image: some models attend to those in both directions or number their positions in 2-D.
    accepted = inspect.signature(model.forward).parameters
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in accepted:
            inputs[name] = (ids == token).long()
    return inputs


IMAGE_NAMES = (
    "image_token_id",
    "image_token_index",
    "image_token",
    "im_patch_id",
    "image_patch_id",
    "video_token_index",
)
AUDIO_NAMES = ("audio_token_id", "audio_token_index", "speech_token_index")
BEGIN_NAMES = ("vision_start_token_id", "image_start_token_id")
END_NAMES = ("vision_end_token_id", "image_end_token_id")


def image_token(model) -> int | None:
    if model.config.model_type.startswith("kosmos"):
        return LAST_TEXT  # any token: a mask says where the image is
    return first_of(model.config, IMAGE_NAMES)


def audio_token(model) -> int | None:
    return first_of(model.config, AUDIO_NAMES)


def first_of(config, names) -> int | None:
    for name in names:
        for one in (config, getattr(config, "text_config", None)):
            value = getattr(one, name, None)
            if isinstance(value, int):
                return value
    return None


@torch.no_grad()
def num_features(model, function: str, media: dict, batch_size: int) -> int:
    """Placeholders a row: the vectors that the model makes of one image or recording."""
    owner = next((one for one in (model, getattr(model, "model", None)) if hasattr(one, function)), None)
    if owner is None:
        return 0
    accepted = inspect.signature(getattr(owner, function)).parameters
    passed = media if "kwargs" in accepted else {name: value for name, value in media.items() if name in accepted}
    found = getattr(owner, function)(**passed)
    if not isinstance(found, (torch.Tensor, list, tuple)):
        found = found.last_hidden_state if found.pooler_output is None else found.pooler_output
    if isinstance(found, torch.Tensor):
        found = [found]
    return sum(one.numel() // one.shape[-1] for one in found) // batch_size
