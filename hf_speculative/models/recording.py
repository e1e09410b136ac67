"""A target that keeps hidden states, for drafters that read them: MTP heads, DFlash, Gemma 4 assistants, EAGLE."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.utils import output_capturing

from ..types import Batch, uploaded
from .ragged import RaggedModel
from .shallow import install_capturing_hooks


class RecordingModel(RaggedModel):
    """A ragged model that also keeps the states of some layers, by position like keys and values: nothing to roll back.

    Args:
        layers: indices into transformers' `hidden_states`: 0 is the embeddings, -1 what the head reads.
    """

    def __init__(self, model: PreTrainedModel, layers: tuple[int, ...]):
        self.recorded = list(layers)
        # Older transformers keep the states of all layers for the length of a pass, newer ones those asked for.
        can_select = hasattr(output_capturing, "selected_hidden_states")
        self.selection: list[int] | bool = self.recorded if can_select else True
        install_capturing_hooks(model)
        super().__init__(model)

    def reset(self) -> None:
        super().reset()
        self.states: Tensor | None = None

    def run(self, **inputs):
        outputs = self.model(**inputs, output_hidden_states=self.selection)
        states = torch.cat([outputs.hidden_states[layer].to(self.device) for layer in self.recorded], -1)
        size = states.shape[2]
        if self.states is None:
            self.states = states.new_zeros(len(states), self.cache.capacity, size)
        self._grow()
        if self.cache.slots is None:
            self.states[:, self.cache.start : self.cache.end] = states
        else:
            self.states.scatter_(1, self.cache.slots[..., None].expand(-1, -1, size), states)
        return outputs

    def _move(self, source: Tensor, goal: Tensor) -> None:
        super()._move(source, goal)
        assert self.states is not None
        index, onto = (
            slots.to(self.states.device)[..., None].expand(-1, -1, self.states.shape[2]) for slots in (source, goal)
        )
        self.states.scatter_(1, onto, self.states.gather(1, index))

    def select(self, indices: list[int]) -> None:
        super().select(indices)
        if indices and self.states is not None:
            self.states = self.states[uploaded(indices, self.states.device, torch.long)]

    def recall(self, sequences: Tensor, padding: list[int], lengths: list[int]) -> Batch | None:
        self.states = None  # of rows that run
        return super().recall(sequences, padding, lengths)

    def _grow(self) -> None:
        assert self.states is not None
        if (missing := self.cache.capacity - self.states.shape[1]) > 0:
            self.states = functional.pad(self.states, (0, 0, 0, missing))

    def _copy(self, lanes: list[int], other, end: int) -> None:
        super()._copy(lanes, other, end)
        size = other.states.shape[2]
        self.states = other.states.new_zeros(len(lanes), self.cache.capacity, size)
        self.states[:, :end] = other.states[uploaded(lanes, other.states.device), :end]

    def take(self, other, lanes: list[int]) -> None:
        super().take(other, lanes)
        assert self.states is not None
        self._grow()
        end = max(other.host_seen)
        self.states[uploaded(lanes, self.states.device), :end] = other.states[:, :end]

    def hidden_states(self, positions: Tensor) -> Tensor:
        assert self.states is not None  # a drafter is first asked after the prompt's pass
        index = positions.to(self.states.device).clamp(0, self.states.shape[1] - 1)
        return self.states.gather(1, index[..., None].expand(-1, -1, self.states.shape[2]))

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.cache.layers[layer].filled()


def fed_slots(starts: list[int], ends: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The columns of a pass in which row b is fed its tokens from `starts[b]` to `ends[b]`.

    Returns:
        `(batch, widest)` int64 slots, rows ending in the last column, and `(batch, widest)` bool, those that are filler.
    """
    first, last = uploaded([starts, ends], device)
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    slots = last[:, None] + torch.arange(-width, 0, device=device)
    return slots, slots < first[:, None]
