"""Prompts for any model type, without a tokenizer or processor: rows of unequal length, as those would pad them."""

from __future__ import annotations

import torch


#: text tokens are drawn from here, clear of special tokens, which `configs.py` puts at the vocabulary's end
FIRST_TEXT, LAST_TEXT = 3, 60
WIDTH = 7


def prompts(mapping: str, model, batch_size: int, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    if model.config.is_encoder_decoder:
        return text(batch_size, generator, padding_side="right")
    return text(batch_size, generator)


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
