"""Texts of the draft itself, in the place of the target's (DistillSpec, arXiv 2310.08461, section 4).

In use a draft goes on from its own tokens. There, too, it learns what the target would have said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .examples import Collator, Example
from .sampling_params import SamplingParams


@dataclass(frozen=True)
class OnPolicy:
    """In a share of the passes, answers are sampled anew from the draft as it is.

    Attributes:
        share: of all passes.
        use: how it is sampled from.
        collator: of the batches.
    """

    share: float
    use: SamplingParams
    collator: Collator

    def __call__(self, draft: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch, with answers of the draft or as it is. No answer is longer than the one in whose place it stands."""
        if torch.rand(()) >= self.share:
            return inputs
        ids, examples = inputs["input_ids"], self.collator.apart(**inputs)
        prompts, lengths = [one.prompt_ids for one in examples], [len(one.new_ids) for one in examples]
        width = max(map(len, prompts))
        padded = torch.tensor([[self.collator.pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        was_training = draft.training
        draft.eval()
        try:
            with torch.no_grad():
                output = draft.generate(
                    input_ids=padded.to(ids.device),
                    attention_mask=mask.to(ids.device),
                    max_new_tokens=max(lengths),
                    pad_token_id=self.collator.pad,
                    **self.use.generate_kwargs,
                )
        finally:
            draft.train(was_training)
        ends = draft.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        new = (row[:length] for row, length in zip(output[:, width:].tolist(), lengths, strict=True))
        examples = [Example(prompt, ended(row, ends)) for prompt, row in zip(prompts, new, strict=True)]
        return {name: tensor.to(ids.device) for name, tensor in self.collator(examples).items()}


def ended(ids: list[int], ends: set) -> tuple[int, ...]:
    """Up to the first token that ends a text, this included."""
    length = next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[:length])
