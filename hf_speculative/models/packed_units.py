"""Units of packing: single linear layers, and layers with the same input."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import nn
from transformers import PreTrainedModel

from .fused_linears import families
from .packed_layers import is_linear, is_packed, pack, unsupported_reason
from .packed_parameters import parameters_of, weight_of


@dataclass(frozen=True)
class Unit:
    """Layers that are packed as one weight: a single one, or several with the same input.

    Attributes:
        is_shared: an embedding shares the weight.
    """

    layers: tuple[nn.Module, ...]
    is_shared: bool = False

    def unsupported_reason(self) -> str | None:
        """Why it is not packed; `None` if it can be, or is, possibly as a part of another model."""
        reasons = (None if is_packed(layer) else unsupported_reason(layer, self.is_shared) for layer in self.layers)
        return next(filter(None, reasons), None)

    def pack(self) -> bool:
        """Pack it; returns whether it is packed now."""
        return all(map(is_packed, self.layers)) or pack(self.layers, self.is_shared)

    @property
    def num_bytes(self) -> int:
        weights = map(weight_of, self.layers)
        return sum(weight.nelement() * weight.element_size() for weight in weights)


def linear_layers(model: PreTrainedModel) -> dict[nn.Module, bool]:
    """The layers that may be packed, each with whether an embedding shares its weight.

    Left out: the first parameter of a model, which `model.device` and `model.dtype` read.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    firsts = {id(next(parameters_of(part), None)) for part in parts}
    shared = {id(weight_of(module)) for module in model.modules() if isinstance(module, nn.Embedding)}
    places = {module: id(weight_of(module)) for module in model.modules() if is_linear(module)}
    return {module: place in shared for module, place in places.items() if place in shared or place not in firsts}


def units_of(model: PreTrainedModel, layers: Mapping[nn.Module, bool]) -> Iterator[Unit]:
    """Group `layers` into units: those with the same input form one, if all of them can be packed."""
    for family in families(model, layers):
        unit = Unit(tuple(family), layers[family[0]])
        is_shared = any(layers[layer] for layer in family)
        num_packed = sum(map(is_packed, family))  # as parts of another model
        is_whole = not is_shared and num_packed in (0, len(family)) and not unit.unsupported_reason()
        yield from parts_of(unit) if is_whole else [Unit((layer,), layers[layer]) for layer in family]


def parts_of(unit: Unit) -> list[Unit]:
    """The unit, or its layers as units, if they have to be packed each alone."""
    are_apart = any(getattr(layer._parameters, "is_apart", False) for layer in unit.layers)
    return [replace(unit, layers=(layer,)) for layer in unit.layers] if are_apart else [unit]
