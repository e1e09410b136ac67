"""Decoder-only rows taken apart: a training row is a prompt and its completion in one, and `labels` say where it begins."""

import torch
from torch import Tensor

IGNORED = -100


def first_labels(labels: Tensor) -> Tensor:
    """The column `(batch,)` of each row's first label, its width where it has none; `labels (batch, width)`."""
    is_label = labels != IGNORED
    return torch.where(is_label.any(1), is_label.int().argmax(1), labels.shape[1])


def prompts_of(inputs: dict[str, Tensor], pad_token_id: int) -> dict[str, Tensor]:
    """What comes before each row's first label, left-padded; rows without labels are prompts as a whole.

    Args:
        inputs: `input_ids (batch, width)`, padded on either side; `attention_mask` and `labels` as wide, if there are any.
            Other tensors as wide, such as `token_type_ids`, are cut the same way; what has another shape is kept.

    Raises:
        ValueError: `labels` are not as wide as the ids, or a row has no prompt.
    """
    ids, labels = inputs["input_ids"], inputs.get("labels")
    mask = inputs.get("attention_mask")
    is_prompt = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if labels is not None:
        if labels.shape != ids.shape:
            raise ValueError(
                f"`labels` have shape {tuple(labels.shape)} and `input_ids` {tuple(ids.shape)}. A row of a decoder-only model "
                "is a prompt and its completion, with a label for each token; or override `generation_inputs`."
            )
        columns = torch.arange(ids.shape[1], device=ids.device)
        is_prompt = is_prompt & (columns < first_labels(labels)[:, None])
    if without := (~is_prompt.any(1)).nonzero().flatten().tolist():
        raise ValueError(f"rows {without} have no prompt: set its labels to {IGNORED}, or override `generation_inputs`.")
    width = int(is_prompt.sum(1).max())
    order = is_prompt.int().argsort(dim=1, stable=True)[:, -width:]  # prompts to the right, in their order
    is_kept = is_prompt.gather(1, order)
    dropped = ("labels", "position_ids", "attention_mask")  # `generate` makes positions from the mask
    prompts = {
        name: value.gather(1, order).masked_fill(~is_kept, pad_token_id if name == "input_ids" else 0)
        if isinstance(value, Tensor) and value.shape == ids.shape
        else value
        for name, value in inputs.items()
        if name not in dropped
    }
    return prompts | {"attention_mask": is_kept.to(torch.long)}


def completions_of(labels: Tensor) -> Tensor:
    """Each row's labels from its first one on, in column 0 and after: `(batch, longest)`, filled up with -100."""
    starts = first_labels(labels)
    width = labels.shape[1]
    columns = torch.arange(width, device=labels.device) + starts[:, None]
    shifted = labels.gather(1, columns.clamp(max=width - 1)).masked_fill(columns >= width, IGNORED)
    longest = int((shifted != IGNORED).any(0).nonzero().max()) + 1 if bool((shifted != IGNORED).any()) else 1
    return shifted[:, :longest]
