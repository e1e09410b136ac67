"""How passes on the ragged path are run: eagerly, compiled ahead of time, or compiled and captured in the process."""

from __future__ import annotations

from collections.abc import Hashable

from transformers import PreTrainedModel

from . import artifacts, packing, pool
from .cached_model import device_of
from .capture import CudaGraphs
from .ragged import RaggedModel
from .sharding import group_of, is_sharded
from .static import AheadModel, StaticModel


def ragged_model(
    model: PreTrainedModel, clamp_ids: bool = False, compile: bool | str = False, cuda_graphs: bool = False
) -> RaggedModel:
    """A ragged model whose passes run as asked, or eagerly where they cannot (`why_eager`).

    Args:
        compile: "auto" takes passes that were compiled ahead of time, and begins to make them where that pays.
    """
    if not (compile or cuda_graphs) or why_eager(model) is not None:
        return RaggedModel(model, clamp_ids)
    run = None if cuda_graphs or not compile else _ahead_of_time(model, waits=compile is True)
    if run is not None:
        return AheadModel(model, clamp_ids, run)
    if compile == "auto" and not cuda_graphs:
        return RaggedModel(model, clamp_ids)
    packing.unpack_weights(model)
    return StaticModel(model, clamp_ids, compile is True, CudaGraphs(device_of(model)) if cuda_graphs else None)


def how_passes_run(compile: bool | str | None, *models: PreTrainedModel | None) -> tuple[Hashable, ...]:
    """What passes of `models`, as this call runs them, cost depends on: "auto" is eager until a file is there."""
    return (compile, *(compile and pool.has_artifact(model) for model in models), *map(packing.are_packed, models))


def why_eager(model: PreTrainedModel) -> str | None:
    """Why passes of `model`, which takes the ragged path, can neither be compiled nor captured; `None` if they can."""
    for name, module in model.named_modules():
        if hasattr(module, "_hf_hook"):
            return f"is spread over devices or offloaded, by a hook on {name or 'the model'}"
        if hasattr(module, "base_layer"):
            return f"has adapters, which are switched on and off outside of a pass ({name})"
    if is_sharded(model) or group_of(model) is not None:
        return "is run by several processes, which wait for each other inside of a pass"
    if getattr(model, "hf_quantizer", None) is not None and not model.hf_quantizer.is_compileable:
        return "is quantised in a way that does not compile"
    return None


def takes_packed(model: PreTrainedModel, compile: bool | str | None, cuda_graphs: bool | None) -> bool:
    """Passes that run as asked read packed weights: eager ones do, and those compiled ahead of time."""
    return not cuda_graphs and (compile is not True or artifacts.why_not(model) is None)


def _ahead_of_time(model: PreTrainedModel, waits: bool) -> artifacts.Run | None:
    """The compiled pass of `model`, as it is now; `None` where there is none, or none yet.

    Args:
        waits: until it is there.
    """
    if artifacts.why_not(model) is not None:
        return None
    packing.renew(model)
    if packing.is_partial(model):  # each other choice of layers would be another file
        packing.keep_plain(
            model, "in compiled passes, since something else has some of their weights, or often asks for them"
        )
    kept = pool.kept(model)
    if kept.artifact is not None and not kept.artifact.is_current():
        kept.artifact = None
    if kept.artifact is None and waits:
        try:
            artifacts.make(model)
        except artifacts.CannotCompile as error:
            if not packing.are_packed(model):
                return None
            packing.keep_plain(model, f"in passes that cannot be compiled otherwise ({error})")
            return _ahead_of_time(model, waits)
    if kept.artifact is None:
        kept.artifact = artifacts.find(model)
        if kept.artifact is None and artifacts.pays(model):
            artifacts.start(model)
    return kept.artifact
