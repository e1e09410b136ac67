"""The ragged path for prompts of more than ids: images, recordings, token types.

transformers' own prefill reads the prompt, as in plain `generate`, and its keys and values go into a ragged cache. Later passes
feed tokens alone, at the positions that the model itself gives the text after such a prompt.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..types import Batch, uploaded
from .ahead import AheadModel
from .inputs import Inputs
from .ragged import RaggedModel
from .static import StaticModel
from .universal import UniversalModel


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
        self._begin(prompts, ahead=0)
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

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        if self.seen is None:
            self._read_prompt(batch)
        return super().greedy_chain(batch, num_tokens, vocab_size)

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

    def drafts_at_once(self, batch: Batch) -> bool:
        if self.seen is None:
            self._read_prompt(batch)
        return super().drafts_at_once(batch)


class AheadMultimodalModel(MultimodalModel, AheadModel):
    """The same with passes that were compiled ahead of time."""
