"""A call's prompt as the host knows it."""

from itertools import compress

import torch
from torch import Tensor


class Prompt:
    """A call's prompt as the host knows it: read from the device once, for all that is decided before the first pass.

    Args:
        input_ids: `(batch, width)`.
        attention_mask: `(batch, width)`; `None`, or one of another shape, hides nothing.

    Attributes:
        history: the ids of each row without those that the mask hides.
        padding: how many it hides in each row.
        is_left_padded: it hides nothing but left padding, and none of the rows as a whole.
    """

    def __init__(self, input_ids: Tensor, attention_mask: Tensor | None):
        if attention_mask is None or attention_mask.shape != input_ids.shape:
            attention_mask = torch.ones_like(input_ids)
        ids, seen = torch.stack([input_ids.long(), attention_mask.to(input_ids.device).bool().long()]).tolist()
        self.history = [list(compress(*row)) for row in zip(ids, seen, strict=True)]
        self.padding = [row.count(0) for row in seen]
        ends = [row[pad:] for row, pad in zip(seen, self.padding, strict=True)]
        width = input_ids.shape[1]
        self.is_left_padded = all(map(all, ends)) and (width == 0 or all(ends))
