"""Linear layers on a CPU with packed weights: stored in the order in which a kernel reads them, and in no other.

Which kernels there are, and what plain products take, is in `products`. A packed layer holds its packed weight *instead of*
the plain one, so there is no second copy to go stale. Reading the weight restores it, bit for bit: `state_dict`,
`save_pretrained`, `.to()`, an optimizer, pickling, a forward that autograd follows.
A weight that other code refers to already is not packed, since that code would not read it again (`is_held`). The one
exception is a head that shares its weight with the embedding, which needs rows: it gets a packed copy, which is compared with
the plain weight before each use (`Stamp`).
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import Conv1D

from ..hf_compat import has_placement_hook, is_compiled
from . import products
from .packed_parameters import PackedParameters, hold, is_held, weight_of
from .products import dtypes
from .shallow import Kind, duplicate, exchanged

#: a layer whose weight was restored this often is not packed again
MOST_RESTORED = 3
#: why a weight stays plain that an optimizer, another model, autograd or NumPy refers to
HELD = "whose weights other code refers to"


class Packed(nn.Module):
    """Mixin of packed layers, before the class of the plain one."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return _uncompiled(self, input)
        parameters = cast(PackedParameters, self._parameters)
        packed = getattr(parameters, "packed", None)  # read once: another thread may restore the plain weight meanwhile
        if packed is None or not _computes(parameters, input, packed):
            return super().forward(input)
        return products.linear(input, packed, dict.get(parameters, "bias"), parameters.num_outputs)

    def __reduce_ex__(self, protocol):
        # A copy, and what is loaded from a file, is an ordinary layer.
        return object.__new__, (PLAIN[type(self)],), vars(self) | {"_parameters": dict(self._parameters)}


@torch.compiler.disable
def _uncompiled(module: nn.Module, input: Tensor) -> Tensor:
    """Run outside of torch.compile, which cannot trace packed weights; passes that we compile are unpacked first."""
    return module.forward(input)


class PackedLinear(Packed, nn.Linear):
    """An `nn.Linear` whose weight is packed."""


class PackedConv1D(Packed, Conv1D):
    """GPT-2's linear layer, whose plain weight is `(in, out)`, packed."""


class Traced(nn.Module):
    """A packed layer for the compiler: its weight has the shape of a packed one, and no numbers."""

    num_outputs: int

    def forward(self, input: Tensor) -> Tensor:
        return products.linear(input, cast(Tensor, self.weight), cast("Tensor | None", self.bias), self.num_outputs)


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


def pack(module: nn.Module, is_shared: bool) -> bool:
    """Replace a layer's plain weight by a packed one, or keep both if `is_shared`. False if it could not."""
    weight, is_transposed = weight_of(module).detach(), issubclass(type(module), Conv1D)
    packed = products.packed(weight.t() if is_transposed else weight)
    del weight
    if not isinstance(module._parameters, PackedParameters):
        module._parameters = PackedParameters(module._parameters)
        module._parameters.is_plain_transposed = is_transposed
        module.__class__ = PACKED[type(module)]
    return hold(module._parameters, packed, is_shared)


def unpack(module: nn.Module) -> None:
    """Undo `pack`, the class included."""
    if isinstance(module._parameters, PackedParameters):
        module._parameters = module._parameters.copy()
        module.__class__ = PLAIN[type(module)]


def for_compiler(module: Kind) -> Kind:
    """A shallow copy with twins of packed layers, products of their input and a parameter that lies as the packed weight does.

    The memory of their weights is never read.
    """
    return exchanged(module, {name: _twin(module.get_submodule(name)) for name in packed_of(module)})


def _twin(layer: nn.Module) -> Traced:
    twin, parameters = cast(Traced, duplicate(layer)), cast(PackedParameters, layer._parameters)
    assert parameters.packed is not None
    twin.__class__ = Traced
    twin.num_outputs = parameters.num_outputs
    weight = nn.Parameter(torch.empty(parameters.packed.shape, dtype=parameters.packed.dtype), requires_grad=False)
    twin._parameters = {"weight": weight, "bias": dict.get(layer._parameters, "bias")}
    return twin


def layout_of(module: nn.Module) -> list:
    """Which layers are packed, and with how many dimensions, which tells the kernel; 0 of one restored meanwhile."""
    return sorted([name, getattr(parameters.packed, "ndim", 0)] for name, parameters in packed_of(module).items())


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
