"""Training examples: a prompt and the target's own answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..call.prompts import padded


@dataclass(frozen=True)
class Example:
    """A prompt and its answer, as ids."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.new_ids)

    def cut(self, max_length: int) -> "Example":
        """The first `max_length` tokens."""
        return Example(self.prompt_ids[:max_length], self.new_ids[: max(0, max_length - len(self.prompt_ids))])


@dataclass(frozen=True)
class Collator:
    """Examples as one right-padded batch; answers are the labels."""

    pad: int = 0

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        ids, mask = padded([[*one.prompt_ids, *one.new_ids] for one in examples], self.pad, left=False)
        starts = torch.tensor([[len(one.prompt_ids)] for one in examples])
        is_answer = mask.bool() & (torch.arange(ids.shape[1]) >= starts)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(is_answer, -100)}


def unique(examples: Sequence[Example], max_length: int) -> list[Example]:
    """Each text once, cut to `max_length`, without those whose prompt alone fills that."""
    found = dict.fromkeys(example.cut(max_length) for example in examples)
    return [example for example in found if example.new_ids]


def token_counts(examples: Sequence[Example], vocab_size: int) -> Tensor:
    """How often each token is one of an answer, `(vocab,)`."""
    ids = torch.tensor([token for example in examples for token in example.new_ids], dtype=torch.long)
    return torch.bincount(ids, minlength=vocab_size)
