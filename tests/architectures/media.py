"""Random images and recordings in the shape that each model type takes."""

from __future__ import annotations

import inspect

import torch


def image_inputs(model, batch_size: int, generator) -> dict:
    config = model.config
    special = IMAGES.get(config.model_type)
    if special is not None:
        return special(config, batch_size, generator)
    accepted = inspect.signature(model.forward).parameters
    if "image_grid_thw" in accepted:
        return grid(config, batch_size, generator)
    if "pixel_values" in accepted:
        return square(config, batch_size, generator)
    return {}


def vision_config(config):
    for name in ("vision_config", "encoder", "vq_config", "vit_config"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return config


def noise(generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def square(config, batch_size: int, generator) -> dict:
    """One image a row, `(batch, channels, height, width)`."""
    vision = vision_config(config)
    size = getattr(vision, "image_size", 8)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return {"pixel_values": noise(generator, batch_size, getattr(vision, "num_channels", 3), height, width)}


def grid(config, batch_size: int, generator, side: int = 4) -> dict:
    """Flattened patches of all images, and how many of them there are in time, height and width."""
    vision = vision_config(config)
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    patch = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    size = channels * getattr(vision, "temporal_patch_size", 1) * patch**2
    return {
        "pixel_values": noise(generator, batch_size * side**2, size),
        "image_grid_thw": torch.tensor([[1, side, side]] * batch_size),
    }


def tiles(config, batch_size: int, generator, num_tiles: int = 1) -> dict:
    """Images cut into tiles, `(batch, tiles, channels, height, width)`."""
    pixels = square(config, batch_size * num_tiles, generator)["pixel_values"]
    return {"pixel_values": pixels.unflatten(0, (batch_size, num_tiles))}


def sized(config, batch_size: int, generator) -> dict:
    """Images with their original sizes."""
    images = square(config, batch_size, generator)
    return images | {"image_sizes": torch.tensor([images["pixel_values"].shape[-2:]] * batch_size)}


def sized_tiles(config, batch_size: int, generator) -> dict:
    images = tiles(config, batch_size, generator, 2)
    return images | {"image_sizes": torch.tensor([images["pixel_values"].shape[-2:]] * batch_size)}


IMAGES = {
    "idefics": tiles,
    "idefics2": tiles,
    "idefics3": tiles,
    "smolvlm": tiles,
    "llava_next": sized_tiles,
    "llava_next_video": sized_tiles,
    "llava_onevision": sized_tiles,
    "mistral3": sized,
    "lighton_ocr": sized,
    "emu3": sized,
}


def audio_inputs(model, batch_size: int, generator) -> dict:
    config = model.config
    special = AUDIO.get(config.model_type)
    if special is not None:
        return special(config, batch_size, generator)
    accepted = inspect.signature(model.forward).parameters
    if "input_features" in accepted:
        return mel(config, batch_size, generator)
    return {}


def mel(config, batch_size: int, generator, num_frames: int = 32) -> dict:
    """Log-mel spectrograms `(batch, bins, frames)`."""
    audio = getattr(config, "audio_config", None) or config
    return {"input_features": noise(generator, batch_size, getattr(audio, "num_mel_bins", 8), num_frames)}


AUDIO: dict = {}
