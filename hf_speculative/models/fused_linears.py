"""Layers that read the same input, such as queries, keys and values: packed as one weight, so that their products are one."""

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
    """The modules in `among`, in their order; as one list those that, by names and shapes, read the same input."""
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
    """The products of one input that some layers have not taken yet."""

    input: Tensor
    version: int
    parts: dict[int, Tensor]


@dataclass
class FusedLinears:
    """Some layers' common product. The first that is given an input computes all of it, the others take their part.

    Attributes:
        sizes: the layers' numbers of outputs.
        members: their parameters.
        num_wasted: products that some layer did not take.
        kept: by thread.
    """

    sizes: list[int]
    members: list[weakref.ref] = field(default_factory=list)
    num_wasted: int = 0
    kept: dict[int, PendingOutput] = field(default_factory=dict, repr=False)

    def split(self, whole: Tensor, dim: int) -> Sequence[Tensor]:
        """What each of the layers has of a `whole` weight or product."""
        return whole.split(self.sizes, dim)

    def part(self, index: int, input: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """What layer `index` makes of `input (..., in)`, of the `product (..., sum of sizes)`."""
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
        """The layers were found to read different inputs, or not all of them to be used, or there any more."""
        return self.num_wasted > MOST_WASTED or not all(reference() is not None for reference in self.members)
