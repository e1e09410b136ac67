"""Linear layers on a CPU with packed weights: stored in the order in which oneDNN reads them, and in no other.

oneDNN reads weights in blocks of its own order, and otherwise reorders them in every pass. Plain products in
float32 are MKL's, which take 1.2 to 4 times as long at 1 to 9 columns (AVX2 and AVX-512; weights of 0.5 to 108 MiB). A packed
layer holds its weight in blocks *instead of* the plain one, so there is no second copy to go stale. Reading the weight
restores it, bit for bit: `state_dict`, `save_pretrained`, `.to()`, an optimizer, pickling, a forward that autograd follows.
A weight that other code refers to already is not packed, since that code would not read it again (`is_held`). The one
exception is a head that shares its weight with the embedding, which needs rows: it gets a packed copy, which is compared with
the plain weight before each use (`Stamp`).
"""

import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from transformers import Conv1D

from ..hf_compat import OWNED_ONCE, has_onednn_bf16, has_placement_hook, is_compiled
from .fused_linears import FusedLinears
from .packed_parameters import Held, PackedParameters, hold, is_held, weight_of
from .shallow import Kind, duplicate, exchanged

#: columns of a pass for which oneDNN orders weights, the fastest order over all widths (docs/optimize.md)
COLUMNS = 16
#: a layer whose weight was restored this often is not packed again
MOST_RESTORED = 3
#: why a weight stays plain that an optimizer, another model, autograd or NumPy refers to
HELD = "whose weights other code refers to"


class Packed(nn.Module):
    """Mixin of packed layers, before the class of the plain one."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return _uncompiled(self, input)
        parameters = self._parameters
        held = getattr(parameters, "held", Held())
        if held.packed is None or not _computes(cast(PackedParameters, parameters), input, held.packed):
            return super().forward(input)
        if (together := held.together) is None:
            return linear(input, held.packed, dict.get(parameters, "bias"))
        if together.is_apart:
            parameters.separate()
            return super().forward(input)
        return together.part(held.index, input, partial(linear, packed=held.packed, bias=_bias_of(together)))

    def __reduce_ex__(self, protocol):
        # A copy, and what is loaded from a file, is an ordinary layer.
        return object.__new__, (PLAIN[type(self)],), vars(self) | {"_parameters": dict(self._parameters)}


def _bias_of(together: FusedLinears) -> Tensor | None:
    members = (cast(PackedParameters, reference()) for reference in together.members)
    return joined([dict.get(parameters, "bias") for parameters in members])


def joined(biases: Sequence[Tensor | None]) -> Tensor | None:
    """The joined bias of fused layers, which all have one, or none has."""
    return None if biases[0] is None else torch.cat(cast("list[Tensor]", biases))


def linear(input: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` with a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")


@torch.compiler.disable
def _uncompiled(module: nn.Module, input: Tensor) -> Tensor:
    """Run outside of torch.compile, which cannot trace packed weights; passes that we compile are unpacked first."""
    return module.forward(input)


class PackedLinear(Packed, nn.Linear):
    """An `nn.Linear` whose weight is packed."""


class PackedConv1D(Packed, Conv1D):
    """GPT-2's linear layer, whose plain weight is `(in, out)`, packed."""


class Traced(nn.Module):
    """A packed layer for the compiler: its weight has the shape `(out, in)` of a packed one, and no numbers.

    Attributes:
        together: those that it is packed with, if there are some, the first of which, of `twins`, has the weight.
    """

    together: FusedLinears | None = None
    index: int
    twins: list[nn.Module]

    def forward(self, input: Tensor) -> Tensor:
        if self.together is None:
            return linear(input, cast(Tensor, self.weight), cast("Tensor | None", self.bias))
        weight, bias = self.twins[0].weight, joined([cast("Tensor | None", twin.bias) for twin in self.twins])
        return self.together.part(self.index, input, lambda input: linear(input, cast(Tensor, weight), bias))


PACKED: dict[type, type[Packed]] = {nn.Linear: PackedLinear, Conv1D: PackedConv1D}
PLAIN: dict[type, type] = {packed: plain for plain, packed in PACKED.items()}


def _computes(parameters: PackedParameters, input: Tensor, packed: Tensor) -> bool:
    """Whether the packed weight can replace the plain one: no gradients, no casts, and an unchanged weight."""
    if type(input) is not Tensor or input.dtype != packed.dtype or input.device.type != "cpu":
        return False
    weight = parameters.peek()
    if torch.is_grad_enabled() and (weight.requires_grad or input.requires_grad):
        return False
    if torch.is_autocast_enabled("cpu") or input.shape[-1] != packed.shape[1]:
        return False
    if parameters.stamp is not None and not parameters.stamp.fits(weight):
        parameters.restore()
        return False
    return True


def is_linear(module: nn.Module) -> bool:
    """Whether a layer is of a kind that can be packed, or is packed."""
    return type(module) in PACKED or type(module) in PLAIN


def is_packed(module: nn.Module) -> bool:
    return getattr(module._parameters, "packed", None) is not None


def packed_weight(modules: Sequence[nn.Module]) -> Tensor:
    """Pack the weight `(out, in)` of a plain layer, or the concatenated weights of several, in blocks."""
    weights = [weight_of(module).detach() for module in modules]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if issubclass(type(modules[0]), Conv1D):
        weight = weight.t()
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), COLUMNS)


def pack(modules: Sequence[nn.Module], is_shared: bool) -> bool:
    """Replace the plain weights of layers by their `packed_weight`, or keep both if `is_shared`. False if it could not."""
    packed = packed_weight(modules)
    for module in modules:
        if not isinstance(module._parameters, PackedParameters):
            module._parameters = PackedParameters(module._parameters)
            module._parameters.is_plain_transposed = issubclass(type(module), Conv1D)
            module.__class__ = PACKED[type(module)]
    return hold([cast(PackedParameters, module._parameters) for module in modules], packed, is_shared)


def unpack(module: nn.Module) -> None:
    """Undo `pack`, the class included."""
    if isinstance(module._parameters, PackedParameters):
        module._parameters = module._parameters.copy()
        module.__class__ = PLAIN[type(module)]


def for_compiler(module: Kind) -> Kind:
    """A shallow copy with twins of packed layers, products of their input and a parameter that lies as the packed weight does.

    The memory of their weights is never read.
    """
    twins: dict[str, nn.Module] = {}
    for names in layout_of(packed_of(module)):
        layers = [module.get_submodule(name) for name in names]
        packed = cast(PackedParameters, layers[0]._parameters).packed
        assert packed is not None
        weight = nn.Parameter(torch.empty(packed.shape, dtype=packed.dtype), requires_grad=False)
        family = [_twin(layer, weight if index == 0 else None) for index, layer in enumerate(layers)]
        if len(family) > 1:
            together = FusedLinears([len(weight_of(layer)) for layer in layers])
            for index, twin in enumerate(family):
                twin.together, twin.index, twin.twins = together, index, family
        twins |= zip(names, family, strict=True)
    return exchanged(module, twins)


def _twin(layer: nn.Module, weight: nn.Parameter | None) -> Traced:
    twin = duplicate(layer)
    twin.__class__ = Traced
    twin._parameters = {"weight": weight, "bias": dict.get(layer._parameters, "bias")}
    return cast(Traced, twin)


def layout_of(packed: Mapping[str, PackedParameters]) -> list[list[str]]:
    """The layers in `packed_of` as lists of names, one list for each packed weight."""
    lists: dict[tuple, dict[int, str]] = defaultdict(dict)
    for name, parameters in packed.items():
        parent, _, own = name.rpartition(".")
        held = parameters.held
        group = own if held.together is None else id(held.together)
        lists[(parent, group)][held.index] = name
    return sorted([names[index] for index in sorted(names)] for names in lists.values())


def packed_of(model: nn.Module) -> dict[str, PackedParameters]:
    """The parameters of packed layers, by the layer's name."""
    modules = model.named_modules(remove_duplicate=False)
    return {name: cast(PackedParameters, module._parameters) for name, module in modules if is_packed(module)}


def unsupported_reason(module: nn.Module, is_shared: bool) -> str | None:
    """Why the weight of this linear layer stays plain; `None` if it can be packed."""
    if "forward" in vars(module) or has_placement_hook(module) or is_compiled(module):
        return "run by another library's function"
    if getattr(module._parameters, "num_restored", 0) >= MOST_RESTORED:
        return f"asked for their weights {MOST_RESTORED} times"
    weight = weight_of(module)
    if type(weight) is not nn.Parameter or weight.layout is not torch.strided or weight.ndim != 2 or not weight.numel():
        return "without a plain weight"
    if weight.device.type != "cpu":
        return f"on {weight.device.type}"
    if weight.dtype not in dtypes():
        return f"in {str(weight.dtype).removeprefix('torch.')}, for which there is nothing to pack here"
    if weight.is_inference() or weight.grad is not None:
        return "in training, or made in inference mode"
    del weight
    if not is_shared and is_held(module._parameters):
        return HELD
    return None


def dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes of weights that can be packed on this machine."""
    room = torch.ops.mkldnn
    is_there = torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")
    needs = ("_linear_pointwise", "_reorder_linear_weight")
    if not is_there or OWNED_ONCE is None or not all(hasattr(room, name) for name in needs):
        return ()
    return (torch.float32, torch.bfloat16) if has_onednn_bf16() else (torch.float32,)
