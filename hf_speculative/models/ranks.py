"""Models that several processes run together: tensor parallel ones, and those whose weights FSDP or ZeRO-3 has sharded."""

from __future__ import annotations

import sys
from typing import Any

from torch import distributed, nn
from transformers import PreTrainedModel


def are_several() -> bool:
    """This process is one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def tensor_parallel_group(model: PreTrainedModel | None) -> Any | None:
    """The process group whose ranks run each layer of `model` between them; `None` where a rank runs it alone.

    That is a model loaded with a `DistributedConfig` that has `tp_size > 1`, or with a device mesh of its own.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or (getattr(model, "_tp_size", None) or 1) == 1 or not are_several():
        return None
    return mesh.get_group("tp") if "tp" in (mesh.mesh_dim_names or ()) else mesh.get_group()


def is_sharded(model: PreTrainedModel | None) -> bool:
    """FSDP or ZeRO-3 has sharded the weights, so that a forward gathers them from all ranks, whatever each of them reads."""
    if model is None or not are_several():
        return False
    return any(_is_fsdp(module) for module in model.modules()) or any(
        hasattr(weight, "ds_id") for weight in model.parameters()
    )


def has_sharded_weights(model: PreTrainedModel) -> bool:
    """FSDP2 has sharded weights, and they are not gathered at the moment."""
    tensor = sys.modules.get("torch.distributed.tensor")  # whoever shards has imported it
    return tensor is not None and is_sharded(model) and any(isinstance(w, tensor.DTensor) for w in model.parameters())


def _is_fsdp(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = [getattr(fsdp, name, None) for name in ("FSDPModule", "FullyShardedDataParallel")]
    return isinstance(module, tuple(kind for kind in kinds if kind is not None))


def num_parameters(model: PreTrainedModel) -> int:
    """Those of the whole model; ZeRO-3 leaves a rank's own with none."""
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
