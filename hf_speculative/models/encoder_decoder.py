"""The ragged path for decoders that attend to an encoder's output: T5, BART, Whisper and their kin.

The decoder's own keys and values lie in a ragged cache. Those of the encoder's output, made with the prompt, stay as they are.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from ..hf_compat import tree_map_only
from ..types import Batch, uploaded
from .ahead import AheadModel
from .inputs import Inputs
from .multimodal import MultimodalModel, StaticMultimodalModel
from .rollback import copy_of
from .universal import UniversalModel

#: inputs that each pass has of its own
OF_A_PASS = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")
#: outputs of an encoder that no decoder reads
UNREAD = {"hidden_states", "attentions", "pooler_output"}


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

    def given_encoded(self, width: int, states: Tensor, mask: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return self.layers.encoded(states, mask, width)

    def _is_static(self, batch: Batch, width: int, ahead: int = 0) -> bool:
        return bool(self._encoded_tensors()) and super()._is_static(batch, width, ahead)

    def _tensors(self, batch: Batch, ahead: int, width: int, end: int) -> tuple[Tensor, ...]:
        return (*super()._tensors(batch, ahead, width, end), *self._encoded_tensors())

    def _encoded_tensors(self) -> list[Tensor]:
        """The arguments of `EncoderDecoderPass.encoded`; empty if the model is given something else."""
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
