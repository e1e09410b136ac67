"""Models that several processes run together: tensor and pipeline parallel ones, and those sharded by FSDP or ZeRO-3."""

import math
import sys
from collections.abc import Iterator
from typing import Any

from torch import distributed, nn
from transformers import PreTrainedModel

from ..hf_compat import device_mesh


def are_several() -> bool:
    """This process is one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def group_of(model: PreTrainedModel | None) -> Any | None:
    """The process group whose ranks run each pass of `model` between them, on the same tokens; `None` where a rank does alone.

    That is a model loaded with a `DistributedConfig` whose `tp_size` or `pp_size` is above 1, or with a device mesh for tensor
    parallelism.
    """
    mesh = device_mesh(model)
    if mesh is None or not are_several():
        return None
    if is_staged(model):
        return distributed.group.WORLD  # transformers has no copies of a pipeline
    names = mesh.mesh_dim_names or ()
    if getattr(model, "tp_size", None) in (None, 1):
        return None
    return mesh.get_group("tp") if "tp" in names else mesh.get_group()


def is_staged(model: PreTrainedModel | None) -> bool:
    """The ranks are the stages of a pipeline: each has some of the layers, and gets the logits from the last one."""
    mesh = device_mesh(model)
    return mesh is not None and "pp" in (mesh.mesh_dim_names or ()) and mesh["pp"].size() > 1


def is_sharded(model: PreTrainedModel | None) -> bool:
    """FSDP or ZeRO-3 has sharded the weights, so that a forward gathers them from all ranks, whatever each of them reads."""
    if model is None or not are_several():
        return False
    return any(map(_is_fsdp, model.modules())) or any(hasattr(weight, "ds_id") for weight in model.parameters())


def has_sharded_weights(model: PreTrainedModel) -> bool:
    """FSDP2 has sharded weights, and they are not gathered at the moment."""
    tensor = sys.modules.get("torch.distributed.tensor")  # imported wherever a model is sharded
    return tensor is not None and is_sharded(model) and any(isinstance(w, tensor.DTensor) for w in model.parameters())


def _is_fsdp(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = [getattr(fsdp, name, None) for name in ("FSDPModule", "FullyShardedDataParallel")]
    return isinstance(module, tuple(kind for kind in kinds if kind is not None))


def weights_of_a_pass(model: PreTrainedModel) -> int:
    """How many weights a pass over one token computes with: of experts those that it is sent to, of embeddings none."""
    config = model.config.get_text_config(decoder=True)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    num_experts = next((n for name in names if (n := getattr(config, name, None))), 1)
    num_chosen = min(getattr(config, "num_experts_per_tok", None) or num_experts, num_experts)
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    # a tied embedding is the head as well, and computes there; another rank of a pipeline may have the head
    tables.discard(getattr(model.get_output_embeddings(), "weight", None))
    weights = [(name, getattr(w, "ds_numel", w.numel())) for name, w in model.named_parameters() if w not in tables]
    sizes = [*weights, *_packed_weights(model)]
    return round(sum(num * (num_chosen / num_experts if ".experts." in name else 1) for name, num in sizes))


def num_parameters(model: PreTrainedModel) -> int:
    """Those of the whole model; ZeRO-3 leaves a rank's own with none."""
    own = sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
    return own + sum(num_weights for _, num_weights in _packed_weights(model))


def _packed_weights(model: PreTrainedModel) -> Iterator[tuple[str, int]]:
    """The weights of each quantised layer that its parameters do not count: buffers, or several packed into a number."""
    for name, module in model.named_modules() if getattr(model, "is_quantized", False) else ():
        sizes = [size for which in ("in_features", "out_features") if isinstance(size := getattr(module, which, None), int)]
        if len(sizes) == 2 and not hasattr(module, "base_layer"):
            counted = sum(weight.numel() for weight in module.parameters(recurse=False))
            yield name, max(0, math.prod(sizes) - counted)
