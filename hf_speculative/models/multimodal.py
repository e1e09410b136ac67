"""The ragged path for prompts of more than ids: images, recordings, token types.

transformers' own prefill reads the prompt, as in plain `generate`, and its keys and values go into a ragged cache. Later passes
feed tokens alone, at the positions that the model itself gives the text after such a prompt.

Decoders that attend to an encoder's output (T5, BART, Whisper and their kin) have their own keys and values in that cache.
Those of the encoder's output, made with the prompt, stay as they are.
"""

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, PreTrainedModel

from ..hf_compat import tree_map_only
from ..types import Batch, uploaded
from .inputs import Inputs
from .ragged import RaggedModel
from .rollback import copy_of
from .static import AheadModel, StaticModel
from .universal import UniversalModel

#: inputs that each pass has of its own
OF_A_PASS = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")
#: outputs of an encoder that no decoder reads
UNREAD = {"hidden_states", "attentions", "pooler_output"}


class MultimodalModel(RaggedModel):
    """A ragged model whose prompt is read by transformers' own prefill.

    Args:
        inputs: the call, prepared by the model's own `generate`.
        clamp_ids: as in `RaggedModel`.
        **passes: how later passes run.
    """

    shares_prefixes = reads_by_length = False

    def __init__(self, model: PreTrainedModel, inputs: Inputs, clamp_ids: bool = False, **passes):
        self.inputs, self.clamp_ids = inputs, clamp_ids
        super().__init__(model, clamp_ids, **passes)

    def reset(self) -> None:
        super().reset()
        #: rows of `inputs` that the batch has, in its order, as long as the prompt was not read
        self.lanes = list(range(len(self.inputs.input_ids)))

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        if self.seen is not None:
            return super().logits(batch, ahead, num_last)
        of_prompt = self._read_prompt(batch)
        num_more = max(batch.host_lengths) + ahead - self.inputs.input_ids.shape[1]
        if num_more == 0:
            return of_prompt
        logits = super().logits(batch, ahead, min(num_last, num_more))
        return logits if num_last <= num_more else torch.cat([of_prompt, logits], 1)

    def _read_prompt(self, batch: Batch) -> Tensor:
        """Read the prompts of all rows of `inputs`, and keep those of the batch; logits `(batch, 1, vocab)` after them."""
        # A draft's inputs are on its own device, a batch on the target's.
        prompts = Batch(self.inputs.input_ids.to(batch.tokens.device), self.inputs.prompt.padding, batch.max_length)
        reader = UniversalModel(self.original, self.inputs, self.clamp_ids)
        for layer in getattr(reader.kwargs.get(self.inputs.cache_name), "layers", []):
            if getattr(layer, "is_sliding", False):
                layer.activate_past_recording()  # the prompt's end may be read again, with what precedes its window
        logits = reader.logits(prompts, ahead=0, num_last=1)
        self._keep(reader)
        slots = prompts.lengths - prompts.padding
        self._start(prompts, ahead=0)
        self.load(reader.rewinder.cache, prompts)
        self.offsets = (reader.position_after_prompt().to(slots.device) - slots).tolist()
        self.num_forwards += 1
        self.rows = prompts.rows
        lanes, self.lanes = self.lanes, []
        if lanes != prompts.rows:
            super().select(lanes)
            self.done = []  # the others are copies of these
            logits = logits[uploaded(lanes, logits.device, torch.long)]
        return logits

    def _keep(self, reader: UniversalModel) -> None:
        """Keep what later passes need of the prompt beside its keys and values."""

    def _begin(self, batch: Batch, ahead: int) -> tuple[list[int], list[int]]:
        if self.seen is None:
            self._read_prompt(batch)
        return super()._begin(batch, ahead)

    def prefill(self, batch: Batch) -> None:
        """Keep one row for each prompt: `inputs` have as many copies of each as the call returns sequences."""
        if self.seen is None:
            self.lanes = self.lanes[:: len(self.lanes) // len(batch.rows)]
        else:
            super().prefill(batch)

    def select(self, indices: list[int]) -> None:
        if self.seen is None:
            self.lanes = [self.lanes[i] for i in indices]
        super().select(indices)


class StaticMultimodalModel(MultimodalModel, StaticModel):
    """The same with passes of static shape after the prompt's."""


class AheadMultimodalModel(MultimodalModel, AheadModel):
    """The same with passes that were compiled ahead of time."""


class EncoderDecoderModel(MultimodalModel):
    """A ragged model whose layers attend to what an encoder gave for the prompt as well."""

    def reset(self) -> None:
        super().reset()
        #: rows of the call that `encoded` and the cache's `cross` are of
        self.encoded_rows: list[int] = []

    def release(self) -> None:
        self.cache.cross = None  # other calls take the cache
        super().release()

    def _begin(self, batch: Batch, ahead: int) -> tuple[list[int], list[int]]:
        found = super()._begin(batch, ahead)
        if self.encoded_rows != batch.rows:
            self._select_encoded(batch.rows)
        return found

    def _keep(self, reader: UniversalModel) -> None:
        changing = {*(self.layers.prefix + name for name in OF_A_PASS), self.layers.cache_name, "use_cache", "logits_to_keep"}
        given = reader._prepared(reader.width + 1)
        self.encoded_of_all = {name: value for name, value in given.items() if name not in changing}
        self.cross_of_all, self.all_rows = reader.rewinder.cache.cross_attention_cache, list(reader.rows)

    def load(self, cache, batch: Batch) -> None:
        super().load(cache.self_attention_cache, batch)

    def run(self, **inputs):
        return super().run(**self.encoded | inputs)

    def _select_encoded(self, rows: list[int]) -> None:
        """Take what the encoder gave for these rows of the call."""
        self.encoded_rows, self.encoded, self.cache.cross = list(rows), self.encoded_of_all, self.cross_of_all
        if rows == self.all_rows:
            return
        index = uploaded(rows, self.device, torch.long)
        self.encoded = tree_map_only(Tensor, lambda part: part.index_select(0, index.to(part.device)), self.encoded)
        self.cache.cross = copy_of(self.cross_of_all)
        for layer in (layer for layer in self.cache.cross.layers if layer.is_initialized):
            both = layer.keys, layer.values
            layer.keys, layer.values = (part.index_select(0, index.to(part.device)) for part in both)

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        stored = EncoderDecoderCache(super().store(None, sequences, padding, lengths), self.cross_of_all)
        if given is None:
            return stored
        vars(given).update(vars(stored))
        return given


class StaticEncoderDecoderModel(EncoderDecoderModel, StaticMultimodalModel):
    """The same with passes of static shape, if the encoder gave states and a mask over them alone."""

    def _select_encoded(self, rows: list[int]) -> None:
        super()._select_encoded(rows)
        self.cache.cross = copy_of(self.cache.cross)
        for index, layer in enumerate(self.cache.cross.layers):
            if layer.is_initialized:
                layer.keys, layer.values = self._in_place((index, 0), layer.keys), self._in_place((index, 1), layer.values)

    def _in_place(self, key: tuple[int, int], part: Tensor) -> Tensor:
        return self.cache.in_buffer(key, part) if self.capture is not None else part.contiguous()

    def _is_static(self, batch: Batch, width: int, ahead: int = 0) -> bool:
        return bool(self._encoded_tensors()) and super()._is_static(batch, width, ahead)

    def _tensors(self, batch: Batch, ahead: int, width: int, end: int) -> tuple[Tensor, ...]:
        return (*super()._tensors(batch, ahead, width, end), *self._encoded_tensors())

    def _encoded_tensors(self) -> list[Tensor]:
        """The arguments of `AttentionLayers.encoded`; empty if the model is given something else."""
        given = {name: value for name, value in self.encoded.items() if value is not None}
        outputs, mask = given.pop("encoder_outputs"), given.pop("attention_mask", None)
        states, others = outputs.last_hidden_state, outputs.keys() - UNREAD - {"last_hidden_state"}
        if given or others or (mask is not None and mask.shape != states.shape[:2]):
            return []
        return [states, states.new_ones(states.shape[:2], dtype=torch.long) if mask is None else mask.long()]


class AheadEncoderDecoderModel(StaticEncoderDecoderModel, AheadModel):
    """The same with passes that were compiled ahead of time."""


def multimodal_class_for(inputs: Inputs) -> type[MultimodalModel]:
    """What reads a prompt of more than ids."""
    return EncoderDecoderModel if inputs.has_encoder else MultimodalModel
