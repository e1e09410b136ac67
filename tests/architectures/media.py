"""Random images in the shape that each model type takes."""

import inspect

import torch

#: patches a side, where a model takes its images as patches
SIDE = 4


def image_inputs(model, batch_size: int, generator) -> dict:
    """One image a row, as the model's processor would give it."""
    config = model.config
    accepted = inspect.signature(model.forward).parameters
    if "pixel_values_images" in accepted and "pixel_values" not in accepted:
        return {"pixel_values_images": square(config, batch_size, generator)["pixel_values"]}
    if not accepted.keys() & {"pixel_values", "flattened_patches"}:
        return {}
    layout = IMAGES.get(config.model_type) or (grid if "image_grid_thw" in accepted else square)
    return layout(config, batch_size, generator)


def noise(generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def vision_config(config):
    for name in ("vision_config", "encoder", "vq_config", "vit_config"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return config


def num_channels(vision) -> int:
    return getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)


def patch_size(vision) -> int:
    return vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]


def square(config, batch_size: int, generator) -> dict:
    """`(batch, channels, height, width)`."""
    vision = vision_config(config)
    size = getattr(vision, "image_size", None) or 8
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return {"pixel_values": noise(generator, batch_size, num_channels(vision), height, width)}


def large(config, batch_size: int, generator) -> dict:
    return {"pixel_values": noise(generator, batch_size, 3, 64, 64)}


def tiles(config, batch_size: int, generator, num_tiles: int = 1) -> dict:
    """`(batch, tiles, channels, height, width)`."""
    pixels = square(config, batch_size * num_tiles, generator)["pixel_values"]
    return {"pixel_values": pixels.unflatten(0, (batch_size, num_tiles))}


def masked_tiles(config, batch_size: int, generator) -> dict:
    images = tiles(config, batch_size, generator)
    return images | {"pixel_attention_mask": torch.ones(batch_size, 1, dtype=torch.bool)}


def sized(config, batch_size: int, generator) -> dict:
    """With the images' original sizes."""
    images = square(config, batch_size, generator)
    return images | {"image_sizes": torch.tensor([images["pixel_values"].shape[-2:]] * batch_size)}


def sized_tiles(config, batch_size: int, generator) -> dict:
    images = tiles(config, batch_size, generator, 2)
    return images | {"image_sizes": torch.tensor([images["pixel_values"].shape[-2:]] * batch_size)}


def two_resolutions(config, batch_size: int, generator) -> dict:
    size = config.high_res_vision_config.image_size
    high = noise(generator, batch_size, 3, size, size)
    return square(config, batch_size, generator) | {"high_res_pixel_values": high}


def cross_attended_tiles(config, batch_size: int, generator) -> dict:
    """The first of four tiles, the others are padding."""
    vision = config.vision_config
    shape = (batch_size, 1, vision.max_num_tiles, vision.num_channels, vision.image_size, vision.image_size)
    mask = torch.zeros(batch_size, 1, vision.max_num_tiles, dtype=torch.long)
    mask[..., 0] = 1
    ids = torch.ones(batch_size, 1, dtype=torch.long)
    return {"pixel_values": noise(generator, *shape), "aspect_ratio_ids": ids, "aspect_ratio_mask": mask}


def grid(config, batch_size: int, generator) -> dict:
    """Flattened patches of all images, and how many of them there are in time, height and width."""
    vision = vision_config(config)
    frames = getattr(vision, "temporal_patch_size", None) or getattr(vision, "patch_temporal", 1)
    patches = noise(generator, batch_size * SIDE**2, num_channels(vision) * frames * patch_size(vision) ** 2)
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * batch_size)}


def merged_grid(config, batch_size: int, generator) -> dict:
    return grid(config, batch_size, generator) | {"image_merge_sizes": torch.tensor([2] * batch_size)}


def grid_of_squares(config, batch_size: int, generator) -> dict:
    """Like `grid`, the patches as small images."""
    size = patch_size(config.vision_config)
    patches = noise(generator, batch_size * SIDE**2, 3, size, size)
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * batch_size)}


def grid_channels_last(config, batch_size: int, generator) -> dict:
    side = config.vision_config.patch_size * config.vision_config.spatial_merge_size
    patches = noise(generator, batch_size * SIDE**2, side, side, 3)
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * batch_size)}


def flat_grid(config, batch_size: int, generator) -> dict:
    patches = noise(generator, batch_size * SIDE**2, 3 * config.vision_config.patch_size**2)
    return {"pixel_values": patches, "image_grid_hw": torch.tensor([[SIDE, SIDE]] * batch_size)}


def strip(config, batch_size: int, generator) -> dict:
    """All images' patches side by side in one."""
    size = config.vision_config.patch_size
    pixels = noise(generator, 1, 3, size, batch_size * SIDE**2 * size)
    return {"pixel_values": pixels, "target_sizes": torch.tensor([[SIDE, SIDE]] * batch_size, dtype=torch.int32)}


def padded_patches(config, batch_size: int, generator) -> dict:
    patches = noise(generator, batch_size, SIDE**2, 3 * patch_size(vision_config(config)) ** 2)
    sizes = {"spatial_shapes": torch.tensor([[SIDE, SIDE]] * batch_size)}
    mask = torch.ones(batch_size, SIDE**2, dtype=torch.long)
    return sizes | {"pixel_values": patches, "pixel_attention_mask": mask}


def placed_patches(config, batch_size: int, generator, side: int = 6) -> dict:
    """Patches with their coordinates; three by three of them make one token."""
    vision = config.vision_config
    size = getattr(vision, "model_patch_size", None) or vision.patch_size
    patches = noise(generator, batch_size, side**2, 3 * size**2)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).expand(batch_size, -1, -1)
    return {"pixel_values": patches, "image_position_ids": places}


def numbered_patches(config, batch_size: int, generator) -> dict:
    """Each patch begins with its row and column, from 1 on."""
    patches = noise(generator, batch_size, SIDE**2, config.vision_config.patch_embed_hidden_size)
    places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)) + 1.0
    flattened = torch.cat([places.expand(batch_size, -1, -1), patches], -1)
    if config.model_type == "pix2struct":
        return {"flattened_patches": flattened, "attention_mask": torch.ones(batch_size, SIDE**2)}
    return {"flattened_patches": flattened}


def row_of_patches(config, batch_size: int, generator) -> dict:
    return {"pixel_values": noise(generator, batch_size, SIDE, 3 * config.patch_size**2)}


def questioned(config, batch_size: int, generator) -> dict:
    """With a question for the query transformer."""
    question = torch.randint(3, 60, (batch_size, 3), generator=generator)
    extra = {"qformer_input_ids": question, "qformer_attention_mask": torch.ones_like(question)}
    if config.model_type == "instructblipvideo":
        return tiles(config, batch_size, generator, 2) | extra
    return square(config, batch_size, generator) | extra


IMAGES = {
    **dict.fromkeys(("gemma4", "gemma4_unified"), placed_patches),
    **dict.fromkeys(("idefics", "idefics2", "idefics3", "smolvlm"), tiles),
    **dict.fromkeys(("instructblip", "instructblipvideo"), questioned),
    **dict.fromkeys(("kimi_k25", "paddleocr_vl"), grid_of_squares),
    **dict.fromkeys(("kosmos-2.5", "pix2struct"), numbered_patches),
    **dict.fromkeys(("emu3", "lighton_ocr", "mistral3", "mistral_large4"), sized),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), sized_tiles),
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), strip),
    "deepseek_vl_hybrid": two_resolutions,
    "florence2": large,
    "fuyu": row_of_patches,
    "granite_docling": masked_tiles,
    "inkling2": grid_channels_last,
    "lfm2_vl": padded_patches,
    "mllama": cross_attended_tiles,
    "nemotron_h_omni": flat_grid,
    "video_llama_3": merged_grid,
}
