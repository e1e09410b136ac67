"""`pack_weights` of `attach`: when it is refused, and for which calls weights are packed."""

from __future__ import annotations

from transformers import PreTrainedModel

from ..models import artifacts, packing
from .configuration import SpeculativeConfig
from .generation_settings import first_given


def pack(model: PreTrainedModel, attached: SpeculativeConfig, in_call: SpeculativeConfig | None = None) -> None:
    """Pack the weights of `model` as the attached settings ask, those that were read since again.

    Not where a call runs passes that take plain weights, as its own config says, or the attached one.
    """
    value = attached.pack_weights
    compile, cuda_graphs = (
        first_given(getattr(in_call, name, None), getattr(attached, name)) for name in ("compile", "cuda_graphs")
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


def check_pack_weights(target: PreTrainedModel, config: SpeculativeConfig) -> None:
    """Refuse `pack_weights=True` where nothing can be packed.

    Raises:
        ValueError: why not, and the way out.
    """
    if config.pack_weights is not True:
        return
    is_ahead = config.compile is True and artifacts.unsupported_reason(target) is None
    is_static = not _takes_packed(config.compile, config.cuda_graphs, is_ahead)
    static = "is to run passes that are captured, or compiled in the process, which take plain weights"
    if (reason := static if is_static else packing.packing_unsupported_reason(target)) is not None:
        name = type(target).__name__
        raise ValueError(f'`pack_weights=True` has no effect: {name} {reason}. Give "auto", or leave it out.')
