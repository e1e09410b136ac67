"""Hidden states that a pass returns beside its logits, by transformers' indices."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..hf_compat import output_capturing
from .shallow import has_own_forward


def asked_for(layers: tuple[int, ...]) -> list[int] | bool:
    """What `output_hidden_states` is for these: older transformers keep all for the length of a pass, newer ones those."""
    return list(layers) if hasattr(output_capturing, "selected_hidden_states") else True


def joined(outputs, layers: tuple[int, ...], device: torch.device) -> Tensor:
    """`(batch, columns, layers * hidden)`."""
    return torch.cat([outputs.hidden_states[layer].to(device) for layer in layers], -1)


def runs_more(modules: Iterable[nn.Module]) -> bool:
    """Some have a `forward` of their own or hooks, beside those by which transformers captures states."""
    return any(
        module._forward_pre_hooks
        or has_own_forward(module)
        or any(getattr(hook, "__module__", None) != output_capturing.__name__ for hook in module._forward_hooks.values())
        for module in modules
    )
