"""Draft for a PEFT model with the model itself, with another adapter or without any.

PEFT's own `disable_adapter()` and `set_adapter()` flip switches on the layers that target and draft share, which another thread
would see, and leave `requires_grad` changed. Here the draft is a shallow copy whose adapter layers have switches of their own.
"""

from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import ACTIVE_ADAPTER, DISABLE_ADAPTERS, adapters_of
from ..models import exchanged
from ..models.shallow import install_capturing_hooks
from .checks import PLAINLY, check_type, unwrap


def without_adapter(model) -> PreTrainedModel:
    """A PEFT model without its adapters: for `draft_model=hs.without_adapter(model)`, or as a target.

    It shares all weights with `model`, which stays as it is and can be used at the same time.

    Args:
        model: a PEFT model with LoRA-style adapters, or a transformers model that `load_adapter` gave some.

    Raises:
        ImportError: peft is not installed.
        TypeError: not such a model.
        ValueError: it has no adapter layers, or they are merged into the weights.
    """
    return _switched(model, {DISABLE_ADAPTERS: True})


def with_adapter(model, adapter_name: str) -> PreTrainedModel:
    """The model with another of its adapters: for `draft_model=hs.with_adapter(model, "small")`, or as a target.

    It shares all weights with `model`, which stays as it is and can be used at the same time.

    Args:
        model: as in `without_adapter`.
        adapter_name: the adapter to use, and no other.

    Raises:
        ImportError, TypeError, ValueError: as in `without_adapter`; there is no adapter of this name.
    """
    return _switched(model, {DISABLE_ADAPTERS: False, ACTIVE_ADAPTER: [adapter_name]}, adapter_name)


def _switched(model, switches: dict, adapter_name: str | None = None) -> PreTrainedModel:
    base = unwrap(model, "model")
    layers, name = _adapter_layers(base), type(model).__name__
    if not layers:
        raise ValueError(f"`model`: {name} has no adapter layers: pass a PEFT model with LoRA-style adapters.")
    if any(getattr(layer, "merged", False) for layer in layers.values()):
        raise ValueError(f"`model`: adapters of {name} are merged into its weights: call `unmerge_adapter()` first.")
    known = {known for layer in layers.values() for known in adapters_of(layer)}
    if adapter_name is not None and adapter_name not in known:
        names = ", ".join(sorted(known))
        raise ValueError(f"`adapter_name={adapter_name!r}` is not one of the model's adapters: {names}.")
    install_capturing_hooks(base)
    twin = exchanged(base, {path: exchanged(layer, {}) for path, layer in layers.items()})
    for path in layers:
        vars(twin.get_submodule(path)).update(switches)
    return twin


def _adapter_layers(base) -> dict[str, nn.Module]:
    """The modules that switch adapters, by path in an unwrapped model."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper
    except ImportError as error:
        raise ImportError("adapters need peft: pip install 'hf_speculative[peft]'") from error
    check_type(base, "model")
    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    return {path: module for path, module in base.named_modules() if isinstance(module, kinds)}


def check_adapter_names(model: PreTrainedModel, num_rows: int) -> None:
    """Refuse PEFT's `adapter_names=`, which gives each row of a call its own adapter, and its activated LoRA.

    Raises:
        ValueError: there are several rows, of which each leaves the batch when it is done, and the names do not follow; or an
            adapter begins so many columns before the end of a pass.
    """
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    keywords = [getattr(hook, "keywords", {}) for hook in hooks]
    if any("alora_offsets" in one for one in keywords):
        raise ValueError(f"an activated LoRA counts columns from a pass's end, where drafts add some: {PLAINLY}.")
    names = next((names for one in keywords if (names := one.get("adapter_names"))), None)
    if names is not None and num_rows > 1:
        way_out = f"`model.set_adapter(...)` for the rows of each apart, or {PLAINLY}"
        raise ValueError(f"`adapter_names={names!r}` gives each row an adapter, and rows leave when they are done: {way_out}.")
