"""Positions for models that count them from their cache's length: BART and its kin, T5's biases, ALiBi.

Their forward stays transformers'. A twin of the module that counts asks the module for positions from 0 on, and takes those of
the pass's columns, so that rows may have lengths of their own.
"""

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..hf_compat import is_compiled
from .cached_model import max_positions_of
from .shallow import exchanged, has_own_forward, shallow


class Columns:
    """The columns of the pass under way, as modules that count read them.

    Attributes:
        are_read: the modules of `model` count positions.
        most_positions: in its tables, 0 if that is not known; `None`: it has none.
    """

    def __init__(self, model: PreTrainedModel):
        counting = {} if position_keyword(model) is not None else _counting(model)
        self.are_read, has_tables = bool(counting), TABLE in counting.values()
        self.most_positions = (max_positions_of(model) or 0) if has_tables else None

    def begin(self, positions: Tensor, depths: Tensor, depths_of_keys: Tensor, num_positions: int | None = None) -> None:
        """Begin a pass.

        Args:
            positions: `(batch, q)` int64.
            depths: `(batch, q)` int64, columns from each row's start.
            depths_of_keys: `(batch or 1, slots)` int64, the same of what the pass attends to.
            num_positions: of the text; the longest text's where it is not known, in passes of static shape.
        """
        self.num_positions = (self.most_positions or 0) if num_positions is None else num_positions
        self.positions, self.depths, self.depths_of_keys = positions, depths, depths_of_keys


def position_keyword(model: PreTrainedModel) -> str | None:
    """The keyword of the model's forward for the decoder's positions; `None` if it takes none."""
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    name, inner = f"{prefix}position_ids", getattr(model, "decoder", None)
    if name in _parameters(type(model).forward):
        return name
    # Of two models, whose second gets what has the prefix.
    return name if prefix and inner is not None and "position_ids" in _parameters(type(inner).forward) else None


def reads_length(model: PreTrainedModel) -> bool:
    """Whether positions are encoded by the length of the longest text of a pass: RoPE types "dynamic" and "longrope"."""
    kinds = [str(vars(module).get("rope_type", "")) for module in model.modules()]  # one, or one by type of layer
    return any("dynamic" in kind or "longrope" in kind for kind in kinds)


def takes_positions(model: PreTrainedModel) -> bool:
    """Whether each row of a pass can be given positions of its own."""
    return position_keyword(model) is not None or counts_itself(model)


def counts_itself(model: PreTrainedModel) -> bool:
    """Whether positions come from the cache's length, and passes can give others by `with_given_positions`."""
    return position_keyword(model) is None and bool(_counting(model))


def with_given_positions(model: PreTrainedModel, columns: Columns) -> PreTrainedModel:
    """A shallow copy of `model` whose modules read `columns` where they would count; the model itself if none does."""
    if position_keyword(model) is not None or not (counting := _counting(model)):
        return model
    return exchanged(model, {path: _twin(model.get_submodule(path), name, columns) for path, name in counting.items()})


def _twin(module: nn.Module, name: str, columns: Columns) -> nn.Module:
    """A copy of the module whose method `name` reads `columns`."""
    twin = shallow(module)
    setattr(twin, name, functools.partial(COUNTING[name], module, columns))  # unlike a closure, a copy of it has copies of both
    return twin


def _counting(model: PreTrainedModel) -> dict[str, str]:
    """The method by which each module counts, by its path; none if a copy of the model would not run them."""
    found = {path: name for path, module in model.named_modules() if (name := _counter(module)) is not None}
    if model.config.is_encoder_decoder:
        of_encoder = set(map(id, model.get_encoder().modules()))
        found = {path: name for path, name in found.items() if id(model.get_submodule(path)) not in of_encoder}
    steps = [path.split(".") for path in found]
    on_the_way = {".".join(way[:depth]) for way in steps for depth in range(len(way) + 1)}
    modules = [model.get_submodule(path) for path in on_the_way]
    return {} if any(map(has_own_forward, modules)) or any(map(is_compiled, modules)) else found


def _counter(module: nn.Module) -> str | None:
    kind = type(module)
    is_table = not module._modules and "past_key_values_length" in _parameters(kind.forward)
    return next((name for name in COUNTING if name != TABLE and hasattr(kind, name)), TABLE if is_table else None)


@functools.cache
def _parameters(forward: Callable) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _in_table(module: nn.Module, columns: Columns, *args, **kwargs) -> Tensor:
    """Embeddings by position, from a table whose first argument is ids, or their shape."""
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    names, padding = [name for name in given if name.startswith("input")], getattr(module, "padding_idx", None)
    ids, is_shape = next(given[name] for name in names if given[name] is not None), names[0].endswith("shape")

    def at_first(num_positions: int, token: int) -> Tensor:
        shape = 1, num_positions
        like = torch.Size(shape) if is_shape else ids.new_full(shape, token)
        own = given | dict.fromkeys(names) | {names[0]: like, "past_key_values_length": 0}
        return module(**own | dict.fromkeys(given.keys() & {"position_ids"})).reshape(num_positions, -1)

    positions = columns.positions.clamp(max=columns.num_positions - 1)
    found = at_first(columns.num_positions, 0 if padding is None else padding + 1)[positions]
    if padding is None or is_shape:
        return found
    return torch.where((ids == padding)[..., None], at_first(1, padding), found)


def _biases(module: nn.Module, columns: Columns, *args, **kwargs) -> Tensor:
    """Biases by the distance of key and query."""
    given, last = inspect.signature(module.compute_bias).bind(*args, **kwargs).arguments, columns.depths_of_keys.shape[1] - 1
    # Those of one query at the end, `(1, heads, 1, keys)`.
    by_distance = module.compute_bias(**given | {"query_length": 1, "past_seen_tokens": last})[0, :, 0].flip(-1)
    distances = columns.depths[:, :, None] - columns.depths_of_keys[:, None]
    return by_distance[:, distances.clamp(min=0)].transpose(0, 1)


def _of_keys(module: nn.Module, columns: Columns, mask: Tensor, *args, **kwargs) -> Tensor:
    """Biases by a key's position alone: a distance less what the softmax does not see."""
    num_rows, depths = columns.depths.shape[0], columns.depths_of_keys
    biases = module.build_alibi_tensor(torch.ones_like(depths[:1]), *args, **kwargs)[:, 0]
    return biases[:, depths].transpose(0, 1).expand(num_rows, -1, -1).reshape(-1, 1, depths.shape[1])


def _of_distances(module: nn.Module, columns: Columns, num_heads: int, length: int, *args, **kwargs) -> Tensor:
    """The same by the distance from the last key: of the keys of a pass, not of as many as the longest text has."""
    return module.build_mpt_alibi_tensor(num_heads, columns.depths_of_keys.shape[1], *args, **kwargs)


#: methods by which modules count, and what takes their places; a table's is its forward
TABLE = "forward"
COUNTING: dict[str, Callable[..., Tensor]] = {
    "compute_bias": _biases,
    "build_alibi_tensor": _of_keys,
    "build_mpt_alibi_tensor": _of_distances,
    TABLE: _in_table,
}
