"""Attention with explicit masks: for grouped query heads without copies, and for models whose kernels take no masks.

A pass over draft tokens needs a mask. Given one, transformers' `sdpa_attention_forward` copies keys and values for each query
head: the whole context, in each layer and pass. Here the query heads of a group become queries of one head, as in transformers
for a single query (`pack_gqa`).

Flash attention, flex attention and kernels of the Hub read prompts, as in plain `generate`. Passes under our masks, which they
do not take, use sdpa.
"""

import copy
import inspect

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ..hf_compat import ALL_ATTENTION_FUNCTIONS, attention_name, sdpa_attention_forward, sdpa_mask, set_own_attention
from . import native
from .linears import runs_by_kernel
from .shallow import replaced, shallow
from .sharding import is_sharded

NAME = "hf_speculative_sdpa"
#: attention that takes an explicit mask
TAKES_MASKS = ("sdpa", "eager", NAME)
#: arguments of such attention that sdpa does not take
NOT_IN_SDPA = ("softcap", "s_aux")
#: the most queries of a pass to fold; a prompt's masks for each query head would take as much memory as the copies
WIDEST = 64


def folded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, None]:
    """`sdpa_attention_forward` without copies of keys and values, equal up to rounding.

    For a module whose own attention takes no explicit mask: that attention, where there is no mask.

    Args:
        module: the attention module; `num_key_value_groups` query heads share a key head.
        query: `(batch, heads, q, dim)`.
        key, value: `(batch, key heads, slots, dim)`.
        attention_mask: `(batch or 1, heads or 1, q or 1, slots)`, bool or additive, or `None`.
        kwargs: as in transformers, which gets what is not handled here.

    Returns:
        `(batch, q, heads, dim)`, and `None` as the weights.
    """
    if (original := vars(module).get("original")) is not None:
        if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
            own = ALL_ATTENTION_FUNCTIONS[attention_name(original.config)]
            return own(original, query, key, value, attention_mask, **kwargs)
        if more := [name for name in NOT_IN_SDPA if kwargs.get(name) is not None]:
            raise ValueError(f"sdpa has no {more[0]}, which this attention is given")
    if not _folds(query, attention_mask, kwargs):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    groups = getattr(module, "num_key_value_groups", 1)
    batch, heads, width, dim = query.shape
    folded = query.reshape(batch, heads // groups, groups * width, dim)
    mask = _folded_mask(attention_mask, groups, query)
    scale = kwargs.get("scaling") or dim**-0.5
    if "by_kernel" in vars(module) and _is_for_kernel(folded, key, value):
        output = native.attention(folded, key, value, mask, scale)
    else:
        output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    return output.reshape(batch, heads, width, value.shape[-1]).transpose(1, 2).contiguous(), None


def _is_for_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return False
    return query.device.type == "cpu" and query.dtype in native.DTYPES and query.dtype == key.dtype == value.dtype


def _folds(query: Tensor, mask: Tensor | None, kwargs: dict) -> bool:
    width, device = query.shape[2], query.device.type
    if kwargs.get("dropout") or any(kwargs.get(name) is not None for name in ("position_bias", "cache", "softcap")):
        return False
    if mask is None:  # other devices have kernels for this case; on the CPU they take a head at a time
        return width == 1 and device == "cpu"
    is_narrow = torch.compiler.is_exporting() or width <= WIDEST  # one exported pass serves all widths
    return is_narrow and mask.ndim == 4 and device in ("cpu", "cuda")


def _folded_mask(mask: Tensor | None, groups: int, query: Tensor) -> Tensor | None:
    """`mask` for a group's queries side by side; on a CPU in additive form, made once for all layers with this mask."""
    if mask is None:
        return None
    width, dtype = query.shape[2], query.dtype
    if torch.compiler.is_dynamo_compiling():
        return fold(mask, groups, width)
    made, kind = vars(mask).get("folded", {}), (groups, dtype)
    if kind in made:
        return made[kind]
    if mask.dtype != torch.bool or query.device.type != "cpu" or torch.compiler.is_exporting():
        return fold(mask, groups, width)
    # torch would convert it in each layer
    made = vars(mask).setdefault("folded", made)
    made[kind] = torch.zeros((), dtype=dtype).where(fold(mask, groups, width), float("-inf"))
    return made[kind]


def fold(mask: Tensor, groups: int, width: int) -> Tensor:
    """`mask` for a group's queries side by side."""
    if mask.shape[1:3] == (1, 1):
        return mask
    batch, heads, _, slots = mask.shape
    rows = mask.expand(-1, -1, width, -1)
    if heads == 1:
        rows = rows[:, :, None].expand(-1, -1, groups, -1, -1)
    return rows.reshape(batch, -1, groups * width, slots)


def with_folded_attention(model: PreTrainedModel) -> PreTrainedModel:
    """The model with `folded_attention` in place of transformers' "sdpa" where query heads share keys.

    `model` and its configs stay as they are.
    """
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention_forward or is_sharded(model):
        return model  # another library has replaced it, or gathers weights in hooks on the modules themselves
    folded = replaced(model, _folded)
    if folded is not model:
        AttentionInterface.register(NAME, folded_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
    return folded


def _folded(module: nn.Module) -> nn.Module | None:
    """A twin of an attention module that has to fold, to take masks or to run by our kernel, else `None`."""
    by_kernel = any(map(runs_by_kernel, module.children()))
    if not _folds_sdpa(module, by_kernel) and not _takes_no_mask(module):
        return None
    twin = shallow(module)
    if by_kernel:
        twin.by_kernel = True
    if attention_name(module.config) != "sdpa":
        vars(twin)["original"] = module  # not by nn.Module's setattr: it is no submodule of the twin
    twin.config = copy.copy(module.config)
    set_own_attention(twin.config, NAME)  # the property's setter would write to configs inside, too
    return twin


def takes_masks(model: PreTrainedModel) -> bool:
    """Whether the attention that the model was loaded with takes explicit masks."""
    return attention_name(model.config.get_text_config(decoder=True)) in TAKES_MASKS


def mask_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why `model` cannot be given explicit masks, by any attention; `None` if it can."""
    if takes_masks(model) or (not is_sharded(model) and any(map(_takes_no_mask, model.modules()))):
        return None
    name = attention_name(model.config.get_text_config(decoder=True))
    return f"uses attn_implementation={name!r}, which takes no explicit mask"


def folds_by(model: nn.Module) -> list[int]:
    """The number of query heads for each key head, where `folded_attention` folds masks."""
    folding = [own for own in map(vars, model.modules()) if attention_name(own.get("config")) == NAME]
    return sorted({own["num_key_value_groups"] for own in folding if "num_key_value_groups" in own})


def _folds_sdpa(module: nn.Module, by_kernel: bool) -> bool:
    own = vars(module)
    is_grouped = own.get("num_key_value_groups", 1) != 1
    return (is_grouped or by_kernel) and attention_name(own.get("config")) == "sdpa" and _dispatches(module, "sdpa")


def _takes_no_mask(module: nn.Module) -> bool:
    name = attention_name(vars(module).get("config"))
    if not name or name in TAKES_MASKS or name not in ALL_ATTENTION_FUNCTIONS:
        return False
    names = inspect.unwrap(type(module).forward).__code__.co_names
    return "ALL_ATTENTION_FUNCTIONS" in names and _dispatches(module, "flash", "flex", "sdpa")


def _dispatches(module: nn.Module, *kinds: str) -> bool:
    """Whether `forward` uses the name of the attention, with one of `kinds` in it, for looking it up alone."""
    forward = inspect.unwrap(type(module).forward)
    constants = [names for names in forward.__code__.co_consts if isinstance(names, (str, tuple, frozenset))]
    # Where it does, building the mask of a sparse attention say, it keeps its name.
    chooses_by_name = any(kind in str(names) for names in constants for kind in kinds)
    return forward.__globals__.get("ALL_ATTENTION_FUNCTIONS") is ALL_ATTENTION_FUNCTIONS and not chooses_by_name
