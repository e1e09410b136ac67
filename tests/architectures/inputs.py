"""Prompts for any model type, without a tokenizer or processor: rows of unequal length, padded as those would pad them.

Every row of an image or audio prompt has one image or recording, its placeholder tokens and some text. How many
placeholders there must be is what the model's own `get_image_features` or `get_audio_features` gives.
"""

import inspect

import torch

from .audio import audio_inputs
from .media import image_inputs

#: text tokens are drawn from here, clear of special tokens, which `configs.py` puts at the vocabulary's end
FIRST_TEXT, LAST_TEXT = 3, 60
WIDTH = 7
IMAGE_NAMES = ("image_token_id", "image_token_index", "image_token", "im_patch_id", "image_patch_id")
IMAGE_NAMES += ("video_token_index",)
AUDIO_NAMES = ("audio_token_id", "audio_token_index", "speech_token_index")
BEGIN_NAMES = ("vision_start_token_id", "image_start_token_id")
END_NAMES = ("vision_end_token_id", "image_end_token_id")

#: encoder-decoder models whose encoder sees the image or recording only
NO_TEXT = {"pix2struct", "pp_formulanet", "vision-encoder-decoder"}
#: a mask says where the image is, any token may stand there
MASKED = {"kosmos-2", "kosmos-2.5"}
#: placeholders a row where the model has no function that says how many
COUNTS = {
    "kosmos-2": lambda config: config.latent_query_num,
    "kosmos-2.5": lambda config: config.latent_query_num,
    "qwen2_audio": lambda config: config.audio_config.max_source_positions // 2,
}
#: inputs that depend on where the placeholders are
AFTER = {
    "kosmos-2": lambda inputs, token: {"image_embeds_position_mask": (inputs["input_ids"] == token).long()},
    "kosmos-2.5": lambda inputs, token: {"image_embeds_position_mask": (inputs["input_ids"] == token).long()},
    "idefics": lambda inputs, token: {"image_attention_mask": inputs["attention_mask"][..., None]},
    "mllama": lambda inputs, token: {
        "cross_attention_mask": inputs["attention_mask"][..., None, None] * inputs["aspect_ratio_mask"][:, None]
    },
    "udop": lambda inputs, token: {"bbox": torch.zeros(*inputs["input_ids"].shape, 4)},
}


def prompts(mapping: str, model, batch_size: int, seed: int = 0) -> dict:
    """What `generate` takes; the first row is the longest."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    kind, given = config.model_type, text(batch_size, generator, padding_side(model))
    if mapping == "image-text":
        media, token = image_inputs(model, batch_size, generator), first_of(config, IMAGE_NAMES)
        function = "get_video_features" if kind == "instructblipvideo" else "get_image_features"
    elif mapping == "speech" or (mapping == "seq2seq" and not config.is_encoder_decoder):
        media, token = audio_inputs(model, batch_size, generator), first_of(config, AUDIO_NAMES)
        function = "get_audio_features"
    else:
        return given
    if config.is_encoder_decoder and (mapping == "speech" or kind in NO_TEXT):
        return media
    token = LAST_TEXT if kind in MASKED else token
    count = COUNTS[kind](config) if kind in COUNTS else num_features(model, function, media, batch_size)
    inputs = placeholders(model, given, token, count) | media
    return inputs | AFTER[kind](inputs, token) if kind in AFTER else inputs


def words(model, batch_size: int, seed: int = 0) -> dict:
    """The text alone."""
    return text(batch_size, torch.Generator().manual_seed(seed), padding_side(model))


def padding_side(model) -> str:
    return "right" if model.config.is_encoder_decoder else "left"


def text(batch_size: int, generator, padding_side: str, width: int = WIDTH) -> dict:
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
    """The text with `count` placeholders in each row: before its last two tokens, or first where padding is last."""
    if token is None or not count:
        return inputs
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    begin, end = first_of(model.config, BEGIN_NAMES), first_of(model.config, END_NAMES)
    marks = ([begin] if begin else []) + [token] * count + ([end] if end else [])
    middle = torch.tensor(marks).expand(len(ids), -1)
    place = 0 if model.config.is_encoder_decoder else -2
    ids = torch.cat([ids[:, :place], middle, ids[:, place:]], 1)
    mask = torch.cat([mask[:, :place], torch.ones_like(middle), mask[:, place:]], 1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    # Which tokens are an image: some models attend to those in both directions or number their positions in 2-D.
    accepted = inspect.signature(model.forward).parameters
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in accepted:
            inputs[name] = (ids == token).long()
    return inputs


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
    if owner is None or not media:
        return 0
    accepted = inspect.signature(getattr(owner, function)).parameters
    passed = {name: value for name, value in media.items() if name in accepted or "kwargs" in accepted}
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in passed and name not in ("args", "kwargs"):
            passed[name] = getattr(model.config, name, None) or getattr(model.config.vision_config, name)
    found = getattr(owner, function)(**passed)
    if not isinstance(found, (torch.Tensor, list, tuple)):
        found = found.last_hidden_state if found.pooler_output is None else found.pooler_output
    found = [found] if isinstance(found, torch.Tensor) else found
    return sum(one.numel() // one.shape[-1] for one in found) // batch_size
