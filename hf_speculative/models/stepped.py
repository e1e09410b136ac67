"""Run recurrent mixers over several columns from a state: the recurrence column by column, or all at once (`steps`).

Their forward stays transformers': it projects and convolves all columns at once, and calls a kernel for prompts, which a twin
replaces by ours. A new type needs no code if its mixer calls one of the kernels below.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ..hf_compat import is_compiled, placement_hook
from .masks import is_recurrent
from .recurrent_cache import NARROW, RecurrentLayer
from .shallow import has_own_forward, replaced, shallow
from .sharding import is_sharded
from .steps import Steps, convolved, gated_delta_rule, selective_scan, state_space

#: our stepping functions, by the kernel for prompts in whose place they run
KERNELS: dict[str, Callable] = {
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kimi_delta_attention": gated_delta_rule,
    "mamba2_chunk_scan": state_space,
    "mamba_selective_scan": selective_scan,
}
#: by which mixers keep their states
STATEFUL = {"update_conv_state", "update_recurrent_state"}
#: the causal convolution of all columns
CONVOLUTION = "causal_conv1d_fn"


def unsteppable_reason(model: PreTrainedModel) -> str | None:
    """Why the recurrent layers of `model` cannot be stepped; `None` if they can, or there are none."""
    if is_sharded(model):
        return "has recurrent layers, whose weights several processes share"
    keeps_states = False
    for module in model.modules():
        names = _names_of(module)
        if STATEFUL.isdisjoint(names):
            continue
        keeps_states = True
        if "update_recurrent_state" in names and KERNELS.keys().isdisjoint(names):
            return f"has a recurrence of another kind ({type(module).__name__})"
        if has_own_forward(module) or is_compiled(module) or any(map(placement_hook, module.modules())):
            return f"has recurrent layers that are offloaded, compiled or changed ({type(module).__name__})"
    return None if keeps_states else "keeps its states in a way of its own"


def with_stepped_mixers(model: PreTrainedModel) -> PreTrainedModel:
    """A shallow copy of `model` whose mixers step; the model itself where it has none, or they cannot."""
    return replaced(model, _stepped) if is_recurrent(model) and unsteppable_reason(model) is None else model


@functools.cache
def _names(forward: Callable) -> tuple[str, ...]:
    """What it calls."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return () if code is None else code.co_names


def calls(model: nn.Module, name: str) -> bool:
    """Whether the forward of one of its modules uses `name`."""
    return any(name in _names_of(module) for module in model.modules())


def convolves_along_paths(model: nn.Module) -> bool:
    """Whether the convolutions of all mixers can follow the paths of a tree."""
    mixers = [names for names in map(_names_of, model.modules()) if "update_conv_state" in names]
    return all(CONVOLUTION in names for names in mixers)


def _names_of(module: nn.Module) -> tuple[str, ...]:
    return _names(type(module).forward)


def _stepped(module: nn.Module) -> nn.Module | None:
    """A twin of a mixer, whose `forward` finds ours under the names of kernels for prompts; `None` if it is no mixer."""
    own_names = _names_of(module)
    ours = {name: run for name, run in (KERNELS | {CONVOLUTION: convolved}).items() if name in own_names}
    if not ours or STATEFUL.isdisjoint(own_names):
        return None
    twin, forward = shallow(module), inspect.unwrap(type(module).forward)
    goes_by: dict[str, Any] = {}

    def kernel(name: str, /, *args, **kwargs) -> Any:
        by = goes_by.get(name)
        return forward.__globals__[name](*args, **kwargs) if by is None else ours[name](by, *args, **kwargs)

    names = forward.__globals__ | {name: functools.partial(kernel, name) for name in ours}
    own = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__

    def run(self, *args, **kwargs):
        steps, paths = _under_way(module.layer_idx, args, kwargs)
        goes_by.update((name, paths if name == CONVOLUTION else steps) for name in ours)
        try:
            return own(self, *args, **kwargs)
        finally:
            goes_by.clear()  # and with it the states

    twin.forward = types.MethodType(run, twin)  # which a copy of the twin binds to itself
    return twin


def _under_way(index: int, args: tuple, kwargs: dict) -> tuple[Steps | None, Tensor | None]:
    """What the cache of a pass wants to be stepped, and the paths of a tree; in transformers' caches, all but prompts are."""
    cache = next((value for value in (*args, *kwargs.values()) if isinstance(value, Cache)), None)
    if cache is None:
        return None, None
    layer, hidden_states = cache.layers[index], kwargs.get("hidden_states", args[0] if args else None)
    if isinstance(layer, RecurrentLayer):
        return layer.steps, layer.paths
    is_narrow, state = hidden_states is not None and 1 < hidden_states.shape[1] <= NARROW, layer.recurrent_states.get(0)
    return Steps(state) if is_narrow and layer.has_previous_state[0] and state is not None else None, None
