"""Fuse layers with the same input, such as queries, keys and values, into one packed weight and one product."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

#: names of children of one module that read the same input, in transformers' models
NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
#: fused products that some of the layers did not use, after which the layers are packed apart
MOST_WASTED = 3


def families(model: nn.Module, among: Mapping[nn.Module, Any]) -> list[list[nn.Module]]:
    """Group the modules in `among`, in order; by names and shapes, those in one list read the same input."""
    family_of: dict[nn.Module, list[nn.Module]] = {}
    num_parents = Counter(child for parent in model.modules() for child in parent._modules.values())
    for parent in model.modules():
        for names in NAMES:
            children = [parent._modules.get(name) for name in names]
            family = [child for child in children if child in among and num_parents[child] == 1]
            is_whole = len(family) == len(names) and all(isinstance(child, nn.Linear) for child in family)
            if is_whole and len(set(map(_reads, family))) == 1:
                family_of |= dict.fromkeys(family, family)
    lists = [family_of.get(module, [module]) for module in among]
    return list({id(modules[0]): modules for modules in lists}.values())


def _reads(module: nn.Module) -> tuple:
    weight, bias = dict.get(module._parameters, "weight"), dict.get(module._parameters, "bias")
    return type(module), None if weight is None else (weight.shape[-1], weight.dtype), bias is None


@dataclass
class PendingOutput:
    """The fused product of one input, and the layers that have not taken their part yet."""

    input: Tensor
    version: int
    parts: dict[int, Tensor]


@dataclass
class FusedLinears:
    """The fused product of some layers. The first layer called with an input computes it, the others take their parts.

    Attributes:
        sizes: the layers' numbers of outputs.
        members: their parameters.
        num_wasted: products of which some layer did not take its part.
        kept: pending products by thread.
    """

    sizes: list[int]
    members: list[weakref.ref] = field(default_factory=list)
    num_wasted: int = 0
    kept: dict[int, PendingOutput] = field(default_factory=dict, repr=False)

    def split(self, whole: Tensor, dim: int) -> Sequence[Tensor]:
        """Split a fused weight or product into the layers' parts."""
        return whole.split(self.sizes, dim)

    def part(self, index: int, input: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """The output of layer `index` for `input (..., in)`: its part of the `product (..., sum of sizes)`."""
        thread = threading.get_ident()
        kept = self.kept.get(thread)
        version = 0 if input.is_inference() else input._version
        if kept is None or kept.input is not input or kept.version != version or index not in kept.parts:
            self.num_wasted += kept is not None
            kept = self.kept[thread] = PendingOutput(input, version, dict(enumerate(self.split(product(input), -1))))
        if len(kept.parts) == 1:
            del self.kept[thread]
        return kept.parts.pop(index)

    @property
    def is_apart(self) -> bool:
        """Whether the layers turned out to read different inputs, or some of them are unused or gone."""
        return self.num_wasted > MOST_WASTED or not all(reference() is not None for reference in self.members)
