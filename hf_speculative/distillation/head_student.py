"""Base class of heads in training: they read the target's states, and are initialised from parts of it."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..heads import layout_for, write_head
from ..heads.layout import members, of_target
from .teacher import Student

#: fields of a target's config that the layers of its head share: required ones, others, and special tokens
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
OPTIONAL = ("head_dim", "max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "rope_parameters")
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


class HeadStudent(Student):
    """A head in training."""

    head: Any
    target: PreTrainedModel

    @property
    def vocabulary(self) -> Tensor | None:  # type: ignore[override]
        """By the head's own map, which a checkpoint may bring."""
        d2t = getattr(self.head, "d2t", None)
        return None if d2t is None else of_target(d2t.cpu())

    def draft(self) -> PreTrainedModel:
        is_same = self.head.dtype == self.target.dtype
        return self.head if is_same else copy.deepcopy(self.head).to(self.target.dtype)

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        head = self.draft()  # in the dtype in which it was measured
        if (layout := layout_for(head)) is None:
            head.save_pretrained(folder)
        else:
            write_head(head, folder, layout)


def layer_fields(target: PreTrainedModel, kind: str) -> dict[str, Any]:
    """Fields of the layers of a head for `target`.

    Raises:
        ValueError: it is not made of what a head needs.
    """
    text = target.config.get_text_config(decoder=True)
    names = (*NEEDED, *OPTIONAL, *SPECIAL)
    fields = {name: value for name in names if (value := getattr(text, name, None)) is not None}
    lacking = [name for name in NEEDED if name not in fields]
    if lacking or target.get_input_embeddings() is None:
        reason = f"a {type(target).__name__}, which has no {', '.join(lacking) or 'embeddings'}"
        raise ValueError(f"no {kind} can be made for {reason}. Train a draft model instead, `head='draft:FOLDER'`.")
    rope = fields.get("rope_parameters") or {"rope_type": "default", "rope_theta": 10000.0}
    # Some targets rotate otherwise in layers with a window, and some a part of each key; the layers of a head do neither.
    rope = rope.get("full_attention", rope)
    fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    return fields


@torch.no_grad()
def take_output_layer(head: Any, target: PreTrainedModel, counts: Tensor) -> None:
    """The head's output layer begins as the target's, of the most frequent ids alone; and its maps of ids are theirs."""
    ids = counts.argsort(descending=True, stable=True)[: len(head.lm_head.weight)].sort().values  # ties: the smaller id
    if head.d2t is not None:
        head.d2t.copy_(ids - torch.arange(len(ids)))
    if getattr(head, "t2d", None) is not None:
        head.t2d.copy_(members(head.d2t, len(head.t2d)))
    output = target.get_output_embeddings()
    if output is not None and output.weight.shape[1] == head.lm_head.weight.shape[1]:
        head.lm_head.weight.copy_(output.weight[ids.to(output.weight.device)])


def num_layers(target: PreTrainedModel) -> int:
    return target.config.get_text_config(decoder=True).num_hidden_layers
