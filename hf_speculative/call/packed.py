"""`pack_weights` of `attach`: when it is refused, and for which calls weights are packed."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..models import packing
from .configuration import SpeculativeConfig
from .generation_settings import first_given


def runs_static(kwargs: dict[str, Any], *configs: SpeculativeConfig | None) -> bool:
    """Passes are to be compiled or captured, which takes plain weights: as a call says, or the first of `configs` that does."""
    names = ("compile", "cuda_graphs")
    return any(first_given(kwargs.get(name), *(getattr(one, name, None) for one in configs)) for name in names)


def check_pack_weights(value: bool | str, target: PreTrainedModel, config: SpeculativeConfig) -> None:
    """Refuses what is no choice, and `True` where nothing can be packed.

    Raises:
        ValueError: why not, and the way out.
    """
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'`pack_weights={value!r}`: give True, False or "auto".')
    if value is not True:
        return
    static = "is to run compiled or captured passes, which take plain weights" if runs_static({}, config) else None
    if (reason := static or packing.why_not_packed(target)) is not None:
        name = type(target).__name__
        raise ValueError(f'`pack_weights=True` has no effect: {name} {reason}. Give "auto", or leave it out.')
