"""A target that keeps hidden states, for drafters that read them: MTP heads, DFlash, Gemma 4 assistants, EAGLE.

Both paths keep them by position, so that there is nothing to roll back: what a later pass feeds again, it writes again.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..types import Batch, uploaded
from .cached_model import device_of
from .inputs import Inputs, text_inputs
from .probe import DOES_NOT_RUN, once
from .ragged import RaggedModel
from .ragged_cache import RaggedLayer, in_rows
from .shallow import asked_for, install_capturing_hooks, joined
from .static import AheadModel, StaticModel
from .universal import UniversalModel


class RecordingModel(RaggedModel):
    """A ragged model that also keeps the states of some layers, in the slots of their keys and values.

    Args:
        layers: indices into transformers' `hidden_states`: 0 is the embeddings, -1 what the head reads.
        **passes: how they are run.
    """

    def __init__(self, model: PreTrainedModel, layers: tuple[int, ...], **passes):
        self.recorded = layers
        self.selection = asked_for(layers)
        install_capturing_hooks(model)
        super().__init__(model, **passes)

    def reset(self) -> None:
        super().reset()
        self.recording = self.cache.recorded = RaggedLayer(self.cache)

    def release(self) -> None:
        self.recording, self.cache.recorded = RaggedLayer(self.cache), None  # other calls take the cache
        super().release()

    def run(self, **inputs):
        outputs = self.model(**inputs, output_hidden_states=self.selection)
        states = joined(outputs, self.recorded, self.device)[:, None]
        self.recording.update(states, states[..., :0])
        return outputs

    @property
    def states(self) -> Tensor:
        """`(rows, capacity, layers * hidden)`, from the prompt's pass on."""
        return self.recording.filled()[0][:, 0]

    def hidden_states(self, positions: Tensor, lanes: Sequence[int] | None = None) -> Tensor:
        states = self.states
        rows, slots = in_rows(positions.clamp(0, states.shape[1] - 1), states.device)
        return states[rows if lanes is None else uploaded(lanes, states.device)[:, None], slots]

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.cache.layers[layer].filled()


class StaticRecordingModel(RecordingModel, StaticModel):
    """The same with passes of static shape, eager or captured. Those keep the memory of states for later calls."""

    def reset(self) -> None:
        super().reset()
        if self.capture is not None:
            self.recording = self.cache.recorded = self.cache.recordings.setdefault(self.recorded, self.recording)
            if self.recording.is_initialized:  # no mask hides an inf
                self.recording.keys.zero_()


class AheadRecordingModel(RecordingModel, AheadModel):
    """The same with passes that were compiled ahead of time, which keep these states as well."""

    def _cached(self, inputs: tuple[Tensor, ...], widths: list[int]) -> Iterator[list[Tensor]]:
        if not self.recording.is_initialized:
            size = len(self.recorded) * self.layers.config.hidden_size
            nothing = torch.empty(len(inputs[0]), 1, 0, size, dtype=self.dtype)
            self.recording.lazy_initialization(nothing, nothing[..., :0])
        for cached in super()._cached(inputs, widths):
            yield [self.states, *cached]


class RecordingUniversalModel(UniversalModel):
    """The same with transformers' own cache, by the columns of the call, an image's among them.

    A pass feeds every row its own tokens as far as it has any, and rows that are behind have the others fed again: what stands
    before a row's newest token is always that row's own.

    Args:
        layers: as of `RecordingModel`.
    """

    def __init__(self, model: PreTrainedModel, inputs: Inputs, layers: tuple[int, ...], keep: tuple[str, ...] = ()):
        self.recorded = layers
        self.selection = True if "hidden_states" in keep else asked_for(layers)
        install_capturing_hooks(model)
        super().__init__(model, inputs, keep=keep)
        self.padding = uploaded(inputs.prompt.padding, self.ids.device)

    def reset(self) -> None:
        super().reset()
        self.states: Tensor | None = None

    def _begin(self) -> None:
        super()._begin()
        self.kwargs["output_hidden_states"] = self.selection

    def _record(self, outputs, first: int, is_prompt: bool = False) -> None:
        super()._record(outputs, first, is_prompt)
        states = joined(outputs, self.recorded, device_of(self.model))
        if is_prompt:  # some models set an image in front of the text
            states = states[:, -self.width :]
        end = first + states.shape[1]
        if self.states is None:
            self.states = states.new_zeros(len(states), 0, states.shape[2])
        if (capacity := self.states.shape[1]) < end:
            self.states = functional.pad(self.states, (0, 0, 0, max(end, 2 * capacity) - capacity))
        self.states[:, first:end] = states

    def hidden_states(self, positions: Tensor, lanes: Sequence[int] | None = None) -> Tensor:
        assert self.states is not None  # a drafter is first asked after the prompt's pass
        asked = self.rows if lanes is None else [self.rows[lane] for lane in lanes]
        rows = uploaded(asked, self.padding.device, torch.long)
        columns = positions.to(self.padding.device) + self.padding[rows, None]
        columns = columns.clamp(0, self.states.shape[1] - 1).to(self.states.device)
        return self.states[rows.to(self.states.device)[:, None], columns]


def states_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why the states of a `model` on the universal path cannot be read; `None` if they can. Tried once, on a short text."""
    return once(model, states_unsupported_reason, lambda: _why_no_states(model))


def _why_no_states(model: PreTrainedModel) -> str | None:
    if model.config.is_encoder_decoder:
        return "is an encoder-decoder model"
    config = model.config.get_text_config(decoder=True)
    ids = torch.arange(1, 5, device=device_of(model)).expand(2, -1) % config.vocab_size
    batch = Batch(ids, [0, 1], max_length=6)
    try:
        cached = RecordingUniversalModel(model, text_inputs(model, batch), (0, -1), keep=("hidden_states",))
        cached.logits(batch, ahead=0, num_last=1)
        states = cached.step_output("hidden_states", row=0, column=3)
    except torch.OutOfMemoryError:
        raise
    except DOES_NOT_RUN:
        return "gives no hidden states of a text"
    sizes = {tuple(state.shape) for state in states}
    if len(states) <= config.num_hidden_layers or sizes != {(1, 4, config.hidden_size)}:
        return f"gives hidden states of other shapes than {config.hidden_size} a token, before and after each layer"
    return None
