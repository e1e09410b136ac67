"""Several short texts in one row, so that little of a batch is padding.

A row says of each of its tokens which text it is of: `texts (batch, width)`, counted from 1 in each row, 0 for padding.
Positions begin anew with each text, and no token sees another text. transformers' masks do this where they are given such
positions and no `attention_mask`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import tolerance, without_dropout

#: what is tried whether a model keeps texts apart: their lengths, row by row
TRIED = ((5, 7), (9, 2, 1))


def rows_of(lengths: Sequence[int]) -> list[list[int]]:
    """Which texts share a row as wide as the longest of them: each goes into the first that has room, the longest first."""
    rows: list[list[int]] = []
    room: list[int] = []
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = next((i for i, free in enumerate(room) if lengths[text] <= free), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(max(lengths))
        rows[row].append(text)
        room[row] -= lengths[text]
    return rows


def positions_of(texts: Tensor) -> Tensor:
    """Each token's position in its own text, `(batch, width)`."""
    slots = torch.arange(texts.shape[1], device=texts.device).expand_as(texts)
    begins = torch.ones_like(texts, dtype=torch.bool)
    begins[:, 1:] = texts[:, 1:] != texts[:, :-1]
    return slots - (slots * begins).cummax(1).values


def model_inputs(ids: Tensor, texts: Tensor) -> dict[str, Any]:
    """Keywords of a causal model's forward. Rows of one text each are handed over as everywhere else."""
    if texts.amax() > 1:
        return {"input_ids": ids, "position_ids": positions_of(texts)}
    return {"input_ids": ids, "attention_mask": texts}


@torch.no_grad()
def keeps_texts_apart(model: PreTrainedModel) -> bool:
    """Whether logits of texts that share a row are those of each by itself, tried on random tokens.

    Models with recurrent layers, or without `position_ids`, mix them; so does flash attention, of several rows.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    width = max(map(sum, TRIED))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (len(TRIED), width), generator=generator).to(model.device)
    texts = torch.zeros_like(ids)
    for row, lengths in enumerate(TRIED):
        texts[row, : sum(lengths)] = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths))
    with without_dropout(model):
        together = model(**model_inputs(ids, texts), use_cache=False).logits
        for row, lengths in enumerate(TRIED):
            for text in range(1, len(lengths) + 1):
                here = texts[row] == text
                alone = model(input_ids=ids[row, here][None], use_cache=False).logits[0]
                if not (together[row, here] - alone).abs().max() <= tolerance(model) * alone.std():
                    return False
    return True
