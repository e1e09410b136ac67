"""Hidden states that a pass returns beside its logits, by transformers' indices."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..hf_compat import output_capturing


def asked_for(layers: tuple[int, ...]) -> list[int] | bool:
    """What `output_hidden_states` is for these: older transformers keep all for the length of a pass, newer ones those."""
    return list(layers) if hasattr(output_capturing, "selected_hidden_states") else True


def joined(outputs, layers: tuple[int, ...], device: torch.device) -> Tensor:
    """`(batch, columns, layers * hidden)`."""
    return torch.cat([outputs.hidden_states[layer].to(device) for layer in layers], -1)


def only_capture(modules: Iterable[nn.Module]) -> bool:
    """Their hooks, if they have any, are those by which transformers captures states, which change nothing."""
    hooks = [hook for module in modules for hook in module._forward_hooks.values()]
    return all(getattr(hook, "__module__", None) == output_capturing.__name__ for hook in hooks)
