"""`pack_weights` of `attach`: when it is refused, and for which calls weights are packed."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..models import artifacts, packing, takes_packed
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
    if not value or not takes_packed(model, compile, cuda_graphs):
        return
    # What a packed layer costs more than a plain one in an eager pass, it does not cost where Python does not run.
    is_timed = value == "auto" and not (compile and artifacts.why_not(model) is None)
    packing.pack_weights(model, only_if_faster=is_timed)


def check_pack_weights(value: bool | str, target: PreTrainedModel, config: SpeculativeConfig) -> None:
    """Refuses what is no choice, and `True` where nothing can be packed.

    Raises:
        ValueError: why not, and the way out.
    """
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'`pack_weights={value!r}`: give True, False or "auto".')
    if value is not True:
        return
    is_static = not takes_packed(target, config.compile, config.cuda_graphs)
    static = "is to run passes that are captured, or compiled in the process, which take plain weights"
    if (reason := static if is_static else packing.why_not_packed(target)) is not None:
        name = type(target).__name__
        raise ValueError(f'`pack_weights=True` has no effect: {name} {reason}. Give "auto", or leave it out.')
