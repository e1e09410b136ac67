"""Positions for models that count them from their cache's length: BART and its kin, T5's biases, ALiBi.

Their forward stays transformers'. A twin of the module that counts asks the module for positions from 0 on, and takes those of
the pass's columns, so that rows may have lengths of their own.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .shallow import exchanged, shallow


class Columns:
    """The columns of the pass under way, as modules that count read them.

    Attributes:
        positions: `(batch, q)` int64, all below `num_positions`.
        depths: `(batch, q)` int64, columns from each row's start.
        depths_of_keys: `(batch or 1, slots)` int64, the same of what the pass attends to.
    """

    positions: Tensor
    num_positions: int
    depths: Tensor
    depths_of_keys: Tensor


def position_keyword(model: PreTrainedModel) -> str | None:
    """The keyword of the model's forward for the decoder's positions; `None` if it takes none."""
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    name, inner = f"{prefix}position_ids", getattr(model, "decoder", None)
    if name in inspect.signature(model.forward).parameters:
        return name
    # Of two models, whose second gets what has the prefix.
    takes = prefix and inner is not None and "position_ids" in inspect.signature(inner.forward).parameters
    return name if takes else None


def takes_positions(model: PreTrainedModel) -> bool:
    """Whether each row of a pass can be given positions of its own."""
    return position_keyword(model) is not None or any(_twin_of(module) is not None for module in model.modules())


def counts_itself(model: PreTrainedModel) -> bool:
    """Whether positions come from the cache's length, so that passes need `with_given_positions`."""
    return position_keyword(model) is None and takes_positions(model)


def with_given_positions(model: PreTrainedModel, columns: Columns) -> PreTrainedModel:
    """A shallow copy of `model` whose modules read `columns`; the model itself where its forward takes positions."""
    if position_keyword(model) is not None:
        return model
    made = {
        path: make(module, columns) for path, module in model.named_modules() if (make := _twin_of(module)) is not None
    }
    return exchanged(model, made)


def _twin_of(module: nn.Module) -> Callable[[nn.Module, Columns], nn.Module] | None:
    kind: Any = type(module)
    make = _twin_of_kind(kind)
    return None if make is _absolute and module._modules else make


@functools.cache
def _twin_of_kind(kind: Any) -> Callable[[nn.Module, Columns], nn.Module] | None:
    if hasattr(kind, "compute_bias"):
        return _relative
    if hasattr(kind, "build_alibi_tensor"):
        return _alibi
    if hasattr(kind, "build_mpt_alibi_tensor"):
        return lambda module, columns: module  # distances from the last key: the softmax does not see where that is
    return _absolute if "past_key_values_length" in inspect.signature(kind.forward).parameters else None


def _called(function: Callable, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names."""
    return dict(inspect.signature(function).bind(module, *args, **kwargs).arguments)


def _absolute(module: nn.Module, columns: Columns) -> nn.Module:
    """A table of embeddings by position, whose first argument is ids, or their shape."""
    twin, forward = shallow(module), inspect.unwrap(type(module).forward)
    padding = getattr(module, "padding_idx", None)

    def run(*args, **kwargs):
        given = _called(forward, module, args, kwargs)
        names = [name for name in given if name.startswith("input")]
        ids, is_shape = next(given[name] for name in names if given[name] is not None), names[0].endswith("shape")

        def at_first(num_positions: int, token: int) -> Tensor:
            shape = 1, num_positions
            like = torch.Size(shape) if is_shape else ids.new_full(shape, token)
            own = given | dict.fromkeys(names) | {names[0]: like, "past_key_values_length": 0}
            return forward(**own | dict.fromkeys(given.keys() & {"position_ids"})).reshape(num_positions, -1)

        found = at_first(columns.num_positions, 0 if padding is None else padding + 1)[columns.positions]
        if padding is None or is_shape:
            return found
        return torch.where((ids == padding)[..., None], at_first(1, padding), found)

    twin.forward = run
    return twin


def _relative(module: nn.Module, columns: Columns) -> nn.Module:
    """Biases by the distance of key and query: those of one query at the end, `(1, heads, 1, keys)`."""
    twin, compute_bias = shallow(module), type(module).compute_bias

    def run(*args, **kwargs):
        last = columns.depths_of_keys.shape[1] - 1
        given = _called(compute_bias, module, args, kwargs) | {"query_length": 1, "past_seen_tokens": last}
        by_distance = compute_bias(**given)[0, :, 0].flip(-1)
        distances = columns.depths[:, :, None] - columns.depths_of_keys[:, None]
        return by_distance[:, distances.clamp(min=0)].transpose(0, 1)

    twin.compute_bias = run
    return twin


def _alibi(module: nn.Module, columns: Columns) -> nn.Module:
    """Biases by a key's position alone: a distance less what the softmax does not see."""
    twin, build = shallow(module), type(module).build_alibi_tensor

    def run(mask: Tensor, *args, **kwargs):
        num_rows, depths = len(columns.depths), columns.depths_of_keys
        biases = build(module, torch.ones_like(depths[:1]), *args, **kwargs)[:, 0]
        return biases[:, depths].transpose(0, 1).expand(num_rows, -1, -1).reshape(-1, 1, depths.shape[1])

    twin.build_alibi_tensor = run
    return twin
