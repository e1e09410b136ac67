"""`pack_weights` of `attach`: when it is refused, and for which calls weights are packed."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..models import artifacts, packing
from .configuration import SpeculativeConfig
from .generation_settings import first_given


def pack(model: PreTrainedModel, value: bool | str, kwargs: dict[str, Any], *configs: SpeculativeConfig | None) -> None:
    """The weights of `model` are packed as `pack_weights=value` asks, those that somebody has looked at since again.

    Not where a call runs passes that take plain weights, as its `kwargs` say, or the first of `configs` that does.
    """
    compile, cuda_graphs = (
        first_given(kwargs.get(name), *(getattr(one, name, None) for one in configs))
        for name in ("compile", "cuda_graphs")
    )
    if not value:
        return
    is_ahead = bool(compile) and artifacts.unsupported_reason(model) is None
    if not _takes_packed(compile, cuda_graphs, is_ahead):
        return
    packing.pack_weights(model, only_if_faster=value == "auto", is_compiled=is_ahead)


def _takes_packed(compile: bool | str | None, cuda_graphs: bool | None, is_ahead: bool) -> bool:
    """Passes that run as asked read packed weights: eager ones do, and those compiled ahead of time, if these `is_ahead`."""
    return not cuda_graphs and (compile is not True or is_ahead)


def check_pack_weights(value: bool | str, target: PreTrainedModel, config: SpeculativeConfig) -> None:
    """Refuses what is no choice, and `True` where nothing can be packed.

    Raises:
        ValueError: why not, and the way out.
    """
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'`pack_weights={value!r}`: give True, False or "auto".')
    if value is not True:
        return
    is_ahead = config.compile is True and artifacts.unsupported_reason(target) is None
    is_static = not _takes_packed(config.compile, config.cuda_graphs, is_ahead)
    static = "is to run passes that are captured, or compiled in the process, which take plain weights"
    if (reason := static if is_static else packing.packing_unsupported_reason(target)) is not None:
        name = type(target).__name__
        raise ValueError(f'`pack_weights=True` has no effect: {name} {reason}. Give "auto", or leave it out.')
