"""The target as a teacher: its distributions and hidden states, computed in process and kept for one step."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import without_dropout
from ..models.states import asked_for, joined


@dataclass(frozen=True)
class TeacherOutputs:
    """What the target makes of a batch of texts, right-padded.

    Attributes:
        ids: `(batch, length)` tokens.
        attention_mask: `(batch, length)`, 0 for padding.
        counted: `(batch, length)` bool: the token after this one is part of an answer, so that guessing it counts.
        logits: `(batch, length, vocab)` of the target.
        states: `(batch, length, layers * hidden)`, its hidden states of the layers asked for, side by side.
    """

    ids: Tensor
    attention_mask: Tensor
    counted: Tensor
    logits: Tensor
    states: Tensor


class Teacher:
    """A frozen target.

    Args:
        target: left as it is, and in eval mode while it teaches.
        layers: indices into transformers' `hidden_states`: 0 is the embeddings.

    Attributes:
        keywords: more of the target's forward.

    Raises:
        ValueError: it gives no hidden states of such layers.
    """

    keywords: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...] = ()):
        self.target, self.layers = target, layers
        if not layers:
            return
        ids = torch.ones(1, 2, dtype=torch.long, device=target.device)
        try:
            self(ids, ids, ids)
        except (TypeError, IndexError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{type(target).__name__} gives no hidden states of layers {layers} ({error}): train a draft model, "
                "`head='draft:FOLDER'`."
            ) from error

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> TeacherOutputs:
        """
        Args:
            labels: `(batch, length)`, the tokens of answers, -100 elsewhere.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **self.keywords}
        with without_dropout(self.target):
            outputs = self.target(**inputs, output_hidden_states=bool(self.layers) and asked_for(self.layers))
        states = joined(outputs, self.layers, input_ids.device) if self.layers else outputs.logits[..., :0]
        return TeacherOutputs(input_ids, attention_mask, self.counted(labels), outputs.logits, states)

    @staticmethod
    def counted(labels: Tensor) -> Tensor:
        """After which tokens a text goes on with one of its answer, `(batch, length)`."""
        counted = torch.zeros_like(labels, dtype=torch.bool)
        counted[:, :-1] = labels[:, 1:] != -100
        return counted
