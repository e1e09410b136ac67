"""The ragged path for decoders that attend to an encoder's output: T5, BART, Whisper and their kin.

The decoder's own keys and values lie in a ragged cache. Those of the encoder's output, made with the prompt, stay as they are.
"""

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from ..hf_compat import tree_map_only
from ..types import Batch, uploaded
from .inputs import Inputs
from .multimodal import MultimodalModel
from .rollback import copy_of
from .universal import UniversalModel

#: inputs that each pass has of its own
OF_A_PASS = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")


class EncoderDecoderModel(MultimodalModel):
    """A ragged model whose layers attend to what an encoder gave for the prompt as well."""

    def reset(self) -> None:
        super().reset()
        #: rows of the call that run, and those that `encoded` and `cross` are of
        self.running: list[int] = []
        self.encoded_rows: list[int] = []

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        self.running = batch.rows
        return super().logits(batch, ahead, num_last)

    def _keep(self, reader: UniversalModel) -> None:
        self.prefix = "decoder_" if self.original.config.is_encoder_decoder else ""
        changing = {*(self.prefix + name for name in OF_A_PASS), self.layers.cache_name, "use_cache", "logits_to_keep"}
        given = reader._prepared(reader.width + 1)
        self.encoded_of_all = {name: value for name, value in given.items() if name not in changing}
        self.cross_of_all, self.all_rows = reader.rewinder.cache.cross_attention_cache, list(reader.rows)

    def load(self, cache, batch: Batch) -> None:
        super().load(cache.self_attention_cache, batch)

    def run(self, **inputs):
        if self.encoded_rows != self.running:
            self._select_encoded()
        for name in ("input_ids", "attention_mask"):
            inputs[self.prefix + name] = inputs.pop(name)
        inputs[self.layers.cache_name] = EncoderDecoderCache(inputs[self.layers.cache_name], self.cross)
        return super().run(**self.encoded, **inputs)

    def _select_encoded(self) -> None:
        """What the encoder gave for the rows running."""
        self.encoded_rows, self.encoded, self.cross = list(self.running), self.encoded_of_all, self.cross_of_all
        if self.running == self.all_rows:
            return
        index = uploaded(self.running, self.device, torch.long)
        self.encoded = tree_map_only(Tensor, lambda part: part.index_select(0, index.to(part.device)), self.encoded)
        self.cross = copy_of(self.cross)
        for layer in (layer for layer in self.cross.layers if layer.is_initialized):
            both = layer.keys, layer.values
            layer.keys, layer.values = (part.index_select(0, index.to(part.device)) for part in both)

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        stored = EncoderDecoderCache(super().store(None, sequences, padding, lengths), self.cross_of_all)
        if given is None:
            return stored
        vars(given).update(vars(stored))
        return given


def multimodal_class_for(inputs: Inputs) -> type[MultimodalModel]:
    """What reads a prompt of more than ids."""
    return EncoderDecoderModel if inputs.has_encoder else MultimodalModel
