"""Training examples: a prompt and the target's own answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
        width = max(example.num_tokens for example in examples)
        ids = torch.full((len(examples), width), self.pad)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for row, example in enumerate(examples):
            start, end = len(example.prompt_ids), example.num_tokens
            ids[row, :end] = torch.tensor(example.prompt_ids + example.new_ids)
            labels[row, start:end] = ids[row, start:end]
            mask[row, :end] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def unique(examples: Sequence[Example], max_length: int) -> list[Example]:
    """Each text once, cut to `max_length`, without those whose prompt alone fills that."""
    found = dict.fromkeys(example.cut(max_length) for example in examples)
    return [example for example in found if example.new_ids]


def token_counts(examples: Sequence[Example], vocab_size: int) -> Tensor:
    """How often each token is one of an answer, `(vocab,)`."""
    ids = torch.tensor([token for example in examples for token in example.new_ids])
    return torch.bincount(ids, minlength=vocab_size)
