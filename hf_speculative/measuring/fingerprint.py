"""Tells whether the arguments of a call are those of an earlier run: weights, logits processors, anything else."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: entries of each weight that are looked at
NUM_SAMPLES = 1024
#: the golden ratio of 2^32, whose multiples are spread over all rows and columns of a matrix (Knuth's multiplicative hashing)
SPREAD = 2654435769


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that change if anything in `value` changes, and are the same in every process.

    They cover a sample of each weight of a model, and what `datasets` hashes of any other object; of what cannot be pickled,
    such as a generator, the type.
    """
    from datasets.fingerprint import Hasher  # a second of imports

    try:
        return Hasher.hash(list(_weights(value)) if isinstance(value, nn.Module) else value)
    except Exception:  # whatever stands in the way of pickling it
        return Hasher.hash([type(value).__module__, type(value).__qualname__])


def _weights(model: nn.Module) -> Iterator[Any]:
    """Name, dtype, shape and a sample of each weight; buffers made from the config, such as rotary tables, are left out."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}"] = buffer
    for name, tensor in sorted(tensors.items()):
        yield from (name, str(tensor.dtype), list(tensor.shape), *_entries(tensor))


def _entries(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of some entries, wherever and however they are stored; none of a tensor without data."""
    if hasattr(tensor, "full_tensor"):  # a shard of one
        tensor = tensor.full_tensor()
    if hasattr(tensor, "__tensor_flatten__"):  # a quantized one is made of others
        for name in tensor.__tensor_flatten__()[0]:
            yield from _entries(getattr(tensor, name))
    elif not tensor.is_meta:
        tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
        entries = tensor.detach().reshape(-1).view(torch.uint8).view(tensor.numel(), tensor.element_size())
        if len(entries) > NUM_SAMPLES:
            entries = entries[torch.arange(NUM_SAMPLES, device=tensor.device) * SPREAD % len(entries)]
        yield entries.cpu().numpy().tobytes()
