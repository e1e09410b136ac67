"""Stand-ins for attention that takes no explicit mask: signatures, masks and limits of the real kernels, computed in torch."""

import inspect

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_speculative.hf_compat import attention_name, set_own_attention

FLASH, FLEX, HUB = "flash_attention_2", "flex_attention", "kernels-community/flash-attn3"
#: what transformers' own function takes, as these were written
PARAMETERS = "module query key value attention_mask dropout scaling sliding_window softcap is_causal s_aux cache kwargs"


class Kernels:
    """The stand-ins, and what they were asked for: `(name, queries, slots, has a mask)` of each call."""

    def __init__(self):
        self.calls: list[tuple[str, int, int, bool]] = []

    def flash(self, module, query, key, value, attention_mask, sliding_window=None, **kwargs):
        """As `flash_attention_forward`: causal from the last slot on, `(batch, slots)` says what is padding on the left."""
        self._note(module, query, key, attention_mask)
        width, slots = query.shape[2], key.shape[2]
        queries, keys = torch.arange(slots - width, slots)[:, None], torch.arange(slots)
        visible = keys <= queries
        if sliding_window is not None and slots > sliding_window:
            visible = visible & (keys > queries - sliding_window)
        visible = visible.expand(len(query), 1, -1, -1)
        if attention_mask is not None:
            assert attention_mask.shape == (len(key), slots), "all that this kernel reads"
            assert attention_mask.equal(attention_mask.sort(dim=1)[0]), "rows are compacted: padding is left"
            visible = visible & attention_mask.bool()[:, None, None]
        return attend(query, key, value, visible, **kwargs)

    def flex(self, module, query, key, value, attention_mask, **kwargs):
        """As `flex_attention_forward`, which reads a block mask."""
        self._note(module, query, key, attention_mask)
        assert isinstance(attention_mask, BlockMask) and attention_mask.seq_lengths == (query.shape[2], key.shape[2])
        shape = (len(query), 1, query.shape[2], key.shape[2])
        visible = create_mask(attention_mask.mask_mod, *shape, device=query.device)
        return attend(query, key, value, visible, **kwargs)

    def _note(self, module, query, key, mask):
        name = attention_name(module.config)
        assert name in (FLASH, FLEX, HUB), f"the kernel is looked up by {name!r}"
        self.calls.append((name, query.shape[2], key.shape[2], mask is not None))


def attend(query, key, value, visible, scaling=None, softcap=None, s_aux=None, **kwargs):
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    weights = scores.softmax(-1).nan_to_num()[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2).contiguous(), None


def flex_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, **given):
    """transformers' `flex_attention_mask`, whose block mask is not compiled."""
    mask_function = mask_function or masking_utils.causal_mask_function
    if (mask := given.get("attention_mask")) is not None and not mask.all():
        mask = masking_utils.prepare_padding_mask(mask, kv_length, kv_offset)
        mask_function = masking_utils.and_masks(mask_function, masking_utils.padding_mask_function(mask))
    function = masking_utils.add_offsets_to_mask_function(mask_function, q_offset, kv_offset)
    return create_block_mask(function, batch_size, None, q_length, kv_length, "cpu")


@pytest.fixture
def kernels(monkeypatch) -> Kernels:
    """All of them registered, under the names that models are loaded with."""
    functions = ALL_ATTENTION_FUNCTIONS._global_mapping
    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    found = Kernels()
    assert {*inspect.signature(functions[FLASH]).parameters} <= {*PARAMETERS.split()}
    for name, function in ((FLASH, found.flash), (HUB, found.flash), (FLEX, found.flex)):
        monkeypatch.setitem(functions, name, function)
    for name, mask in ((HUB, masking_utils.flash_attention_mask), (FLEX, flex_mask)):
        monkeypatch.setitem(masks, name, mask)
    return found


def loaded(model, name: str):
    """The model as `from_pretrained(attn_implementation=name)` gives it where the kernel is installed."""
    for module in model.modules():
        if attention_name(vars(module).get("config")):
            set_own_attention(module.config, name)
    return model
