"""Fingerprints of arguments (weights, logits processors, other objects), to recognise those of an earlier run."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: entries of each weight that are hashed
NUM_SAMPLES = 1024
#: the golden ratio of 2^32, whose multiples are spread over all rows and columns of a matrix (Knuth's multiplicative hashing)
SPREAD = 2654435769


def fingerprint(value: Any) -> str:
    """Hash `value` to sixteen hexadecimal digits, the same in every process.

    Of a model, a sample of each weight is hashed; of other objects, what `datasets` hashes; of objects that cannot be pickled,
    such as a generator, the type.
    """
    from datasets.fingerprint import Hasher  # a second of imports

    if isinstance(value, tuple):
        value = [*map(fingerprint, value)]
    try:
        return Hasher.hash(list(_weights(value)) if isinstance(value, nn.Module) else value)
    except Exception:  # it cannot be pickled
        return Hasher.hash([type(value).__module__, type(value).__qualname__])


def _weights(model: nn.Module) -> Iterator[Any]:
    """Yield name, dtype, shape and a sample of each weight; without buffers made from the config, such as rotary tables."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}"] = buffer
    for name, tensor in sorted(tensors.items()):
        yield from (name, str(tensor.dtype), list(tensor.shape), *_entries(tensor))


def _entries(tensor: Tensor) -> Iterator[bytes]:
    """Yield the bytes of some entries of a sharded, quantized, sparse or dense tensor; none of a meta tensor."""
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
