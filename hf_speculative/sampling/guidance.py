"""Classifier-free guidance: move the target's distribution away from its distribution without the prompt.

Sanchez et al. 2023 (arXiv 2306.17806).

transformers does it in a logits processor that runs the model once a token. Here that second pass is a cached model of its own,
which sees a whole draft at once and is taken back like the target.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, UnbatchedClassifierFreeGuidanceLogitsProcessor

from ..hf_compat import CACHE
from ..models import Inputs, UniversalModel
from ..types import Batch, uploaded


class Guidance:
    """`guidance_scale` for rows of their own length, applied to the target only: a draft may have any distribution.

    Args:
        processor: what `generate` prepared; it comes first of all processors.
    """

    def __init__(self, processor: UnbatchedClassifierFreeGuidanceLogitsProcessor):
        self.scale, self.model = processor.guidance_scale, processor.model
        self.context = processor.unconditional_context
        self.has_begun = False

    def __call__(self, batch: Batch, scores: Tensor) -> Tensor:
        """Guided `scores (batch, n, vocab)`, the last of which follows the tokens `n - 1` beyond each row's length."""
        if not self.has_begun:
            self._begin(batch)
        self._follow(batch)
        num_positions = scores.shape[1]
        logits = self.unconditional.logits(self.batch, ahead=num_positions - 1, num_last=num_positions)
        unconditional = logits.float().log_softmax(-1)
        return self.scale * (scores.log_softmax(-1) - unconditional) + unconditional

    def commit(self, batch: Batch) -> None:
        self._follow(batch)
        self.unconditional.rollback(self.batch)

    def _begin(self, batch: Batch) -> None:
        prompt = self.context["input_ids"]
        if prompt is None:
            prompt = batch.tokens[:, batch.prompt_width - 1 : batch.prompt_width]
        prompt = prompt.expand(len(batch.rows), -1)
        mask = self.context["attention_mask"]
        mask = torch.ones_like(prompt) if mask is None else mask.expand_as(prompt)
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        kwargs = {"attention_mask": mask, CACHE: cache, "use_cache": True}
        self.batch = Batch(prompt, [0] * len(batch.rows), batch.max_length + prompt.shape[1])
        self.unconditional = UniversalModel(self.model, Inputs(prompt, GenerationConfig(), kwargs))
        self.prompt, self.has_begun = prompt, True

    def _follow(self, batch: Batch) -> None:
        """The same new tokens behind the other prompt."""
        own = self.batch
        if own.rows != batch.rows:
            kept = [own.rows.index(row) for row in batch.rows]
            own.select(kept)
            self.unconditional.select(kept)
        more = own.prompt_width - batch.prompt_width
        rows = uploaded(batch.rows, self.prompt.device)
        own.tokens = torch.cat([self.prompt[rows], batch.tokens[:, batch.prompt_width :]], 1)
        own.lengths = batch.lengths + more
        own.host_lengths = [length + more for length in batch.host_lengths]
