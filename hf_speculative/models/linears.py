"""Linear layers of a model that multiply by our kernel, see `native`; their weights stay as they are."""

import os

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn import functional
from transformers import PreTrainedModel

from . import native
from .described import FOLDER, OFF

#: bytes of a float32 weight below which a layer's own Python, 6 microseconds, takes what the kernel gains
LEAST_BYTES = 2**19


#: set while our own passes are exported; files that others make of a model run without our kernel
exports_ours = False


class KernelLinear(nn.Linear):
    """An `nn.Linear` that multiplies by our kernel. Copies and pickles of it are plain."""

    def forward(self, input: Tensor) -> Tensor:
        product = native.linear if _computes(self, input) else functional.linear
        return product(input, self.weight, self.bias)

    def __reduce_ex__(self, protocol):
        return object.__new__, (nn.Linear,), vars(self)


def _computes(layer: nn.Linear, input: Tensor) -> bool:
    """Whether the kernel can take the place of `functional.linear`, and gains something."""
    weight, bias = layer.weight, layer.bias
    if torch.jit.is_tracing() or (torch.compiler.is_exporting() and not exports_ours):
        return False
    if not torch.compiler.is_compiling():
        if unpack_dual(input).tangent is not None:  # of derivatives in forward mode
            return False
        # A tensor of another library computes in its own way.
        if type(input) is not Tensor or type(weight) is not nn.Parameter:
            return False
        if weight.dtype == torch.float32 and weight.numel() * 4 < LEAST_BYTES:
            return False
    if weight.dtype not in native.DTYPES or not input.dtype == weight.dtype == (weight if bias is None else bias).dtype:
        return False
    if not input.device.type == weight.device.type == "cpu" or not weight.is_contiguous():
        return False
    has_gradients = torch.is_grad_enabled() and (weight.requires_grad or input.requires_grad)
    return not has_gradients and not torch.is_autocast_enabled("cpu")


def use_kernel(model: PreTrainedModel) -> None:
    """Let the linear layers of `model` multiply by our kernel, where there is one."""
    if model.device.type == "cpu" and native.has_kernel():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = KernelLinear


def drop_kernel(model: PreTrainedModel) -> None:
    """Undo `use_kernel`."""
    for module in model.modules():
        if type(module) is KernelLinear:
            module.__class__ = nn.Linear


def runs_by_kernel(layer: nn.Module) -> bool:
    """Whether it is a linear layer that multiplies by our kernel."""
    return type(layer) is KernelLinear


def num_by_kernel(model: nn.Module) -> int:
    """How many of its linear layers multiply by our kernel."""
    return sum(map(runs_by_kernel, model.modules()))


def describe(model: PreTrainedModel) -> str:
    """Say for `check` what multiplies in the linear layers of `model`."""
    num = num_by_kernel(model)
    if num:
        num_plain = sum(type(module) is nn.Linear for module in model.modules())
        return f"{num} of {num + num_plain} linear layers multiply by hf_speculative's kernel"
    if model.device.type != "cpu":
        return f"multiplied by torch: hf_speculative's kernel is for CPUs, and the model is on {model.device.type}"
    if os.environ.get(FOLDER) == OFF:  # kernels are not built for the answer
        return f"multiplied by torch: {FOLDER}={OFF}"
    if (reason := native.no_kernel_reason()) is not None:
        return f"multiplied by torch: {reason}"
    return "multiplied by torch; `attach` lets hf_speculative's kernel do it, unless `optimize=False`"
