"""Exchange modules of a model in a shallow copy that shares everything else; the original stays as it is.

Early exit and hidden-state drafters run parts of a model. Exchanging modules in place, or a number in the config, would be seen
by every other thread that runs the model; a shallow copy is private to the call, and holds no second copy of a weight.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..hf_compat import has_placement_hook, hooked_forward, is_compiled, output_capturing, set_hooked_forward

Kind = TypeVar("Kind", bound=nn.Module)
#: methods that `attach` replaces; copies leave them out, since they hold the original and would run it
REPLACED = ("generate", "generate_batch", "init_continuous_batching")


def decoder_layers(model: PreTrainedModel) -> str | None:
    """The path of the model's only list of decoder layers, such as `"model.layers"`; `None` without one, or with several."""
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    encoder = model.get_encoder() if model.config.is_encoder_decoder else None
    found, pending = [], list(model.named_children())
    while pending:
        path, module = pending.pop()
        if module is encoder:
            continue
        if isinstance(module, nn.ModuleList):
            found += [path] if len(module) == num_layers else []
        else:
            pending += [(f"{path}.{name}", child) for name, child in module.named_children()]
    return found[0] if len(found) == 1 else None


def output_head(model: PreTrainedModel) -> str | None:
    """The model's name for its output layer; `None` if that is no child of the model."""
    head = model.get_output_embeddings()
    return next((name for name, child in model.named_children() if child is head), None)


def is_patched(model: PreTrainedModel) -> bool:
    """Whether a `forward` on the way to the model's layers was replaced by one that a copy would not run."""
    *way, _ = (decoder_layers(model) or "").split(".")
    modules = [model, *(model.get_submodule(".".join(way[: depth + 1])) for depth in range(len(way)))]
    return any(map(has_own_forward, modules))


def has_own_forward(module: nn.Module) -> bool:
    """Whether the object's own `forward` is more than accelerate's wrapper around its class's."""
    own = vars(module)
    if not has_placement_hook(module):
        return "forward" in own
    return getattr(hooked_forward(module), "__func__", None) is not type(module).forward


def install_capturing_hooks(model: PreTrainedModel) -> None:
    """Before a copy is asked for outputs of layers that it shares: else both models would install transformers' hooks there.

    Each part once: transformers installs them on the part that is asked, and from above a second time on all parts.
    """
    for part in (module for module in model.modules() if isinstance(module, PreTrainedModel)):
        if not any(vars(module).get("_output_capturing_hooks_installed", False) for module in part.modules()):
            output_capturing.maybe_install_capturing_hooks(part)


def exchanged(model: Kind, modules: Mapping[str, nn.Module]) -> Kind:
    """A shallow copy of `model` that has `modules` at these paths. Only the modules on the way there are copied."""
    top = shallow(model)
    copied: dict[str, nn.Module] = {"": top}
    for path, module in modules.items():
        *way, name = path.split(".")
        for depth, step in enumerate(way):
            here, there = ".".join(way[:depth]), ".".join(way[: depth + 1])
            if there not in copied:
                copied[there] = copied[here]._modules[step] = shallow(copied[here]._modules[step])
        copied[".".join(way)]._modules[name] = module
    return top


def replaced(module: nn.Module, twin_of: Callable[[nn.Module], nn.Module | None]) -> Any:
    """`module` with a twin in place of each part that `twin_of` makes one of.

    A shallow copy, which shares all weights, made of the modules on the way to these; the module itself where there are none.
    """
    if not module._modules or has_own_forward(module) or is_compiled(module):
        return module  # a copy would run the original's children, or what is not compiled
    children = {name: replaced(child, twin_of) for name, child in module._modules.items() if child is not None}
    twin = twin_of(module)
    if twin is None and all(child is module._modules[name] for name, child in children.items()):
        return module
    twin = shallow(module) if twin is None else twin
    twin._modules.update(children)
    return twin


def duplicate(module: Kind) -> Kind:
    """`copy.copy`, also of a module that FSDP2 has given a class of its own, which makes another one when it is called."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    return twin


def shallow(module: Kind) -> Kind:
    """Copy `module`; parameters, buffers, hooks and children are shared, the dict `_modules` is its own."""
    twin = duplicate(module)
    twin._modules = dict(module._modules)
    for name in REPLACED:
        vars(twin).pop(name, None)
    if has_placement_hook(module) and not has_own_forward(module):
        # accelerate's wrapper around `forward` is bound to the original.
        twin.forward = functools.partial(module.forward.func, twin)
        set_hooked_forward(twin, type(module).forward.__get__(twin))
    # transformers would install the hooks of `output_hidden_states` on the shared layers a second time.
    twin._output_capturing_hooks_installed = True
    return twin


class LayerProxy(nn.Module):
    """Takes the place of a layer; other attributes than `forward` are the layer's.

    Args:
        state: shared with the proxies of other layers.
    """

    def __init__(self, layer: nn.Module, state: Any):
        super().__init__()
        self.__dict__.update(layer=layer, state=state)  # past nn.Module: the layer is not a part of this one

    def __getattr__(self, name: str):
        return getattr(self.__dict__["layer"], name)


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
