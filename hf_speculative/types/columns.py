"""Columns of rows with their own lengths."""

import torch
from torch import Tensor


def columns_from(first: Tensor, width: int) -> Tensor:
    """`(batch, width)`: columns `first (batch,)` and those after it."""
    columns = first[:, None]
    return columns if width == 1 else columns + torch.arange(width, device=first.device)
