"""Copy between host and device without waiting. A round reads from the device once, in `Batch.append`."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: a probability of 1 where it is read from the device as a whole number
UNIT = 2**24


def in_units(values: Tensor) -> Tensor:
    """Probabilities among whole numbers: all that a round reads is int64, and read at once."""
    return (values.float().nan_to_num(0) * UNIT).long()


def uploaded(values: Sequence, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host as a tensor on `device`.

    `torch.tensor(values, device=...)` waits until a GPU has done all work it was given before. This does not: CUDA takes the
    values into a buffer of its own at once. Other devices may read them later, when they may be gone.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=device.type == "cuda")


def read_later(tensor: Tensor) -> Tensor:
    """A copy of `tensor` on the host, which is complete once anything else has been read from its device."""
    return tensor.to("cpu", non_blocking=tensor.device.type == "cuda")
