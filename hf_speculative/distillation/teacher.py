"""The target as a teacher, what it teaches, and the interface of its students.

Its distributions and hidden states are computed in process and kept for one step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import padded
from ..models import without_dropout
from ..models.shallow import asked_for, joined


@dataclass(frozen=True)
class TeacherOutputs:
    """What the target makes of a batch of texts, right-padded.

    Attributes:
        ids: `(batch, length)` tokens.
        attention_mask: `(batch, length)`, 0 for padding.
        counted: `(batch, length)` bool: the token after this one is part of an answer, so that guessing it counts.
        logits: `(batch, length, vocab)` of the target.
        states: `(batch, length, layers * hidden)`, its hidden states of the layers asked for, side by side.
    """

    ids: Tensor
    attention_mask: Tensor
    counted: Tensor
    logits: Tensor
    states: Tensor


class Teacher:
    """A frozen target.

    Args:
        target: left as it is, and in eval mode while it teaches.
        layers: indices into transformers' `hidden_states`: 0 is the embeddings.

    Attributes:
        keywords: more of the target's forward.

    Raises:
        ValueError: it gives no hidden states of such layers.
    """

    keywords: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...] = ()):
        self.target, self.layers = target, layers
        if not layers:
            return
        ids = torch.ones(1, 2, dtype=torch.long, device=target.device)
        try:
            self(ids, ids, ids)
        except (TypeError, IndexError, KeyError, AttributeError) as error:
            reason = f"{type(target).__name__} gives no hidden states of layers {layers} ({error})"
            raise ValueError(f"{reason}: train a draft model, `head='draft:FOLDER'`.") from error

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> TeacherOutputs:
        """
        Args:
            labels: `(batch, length)`, the tokens of answers, -100 elsewhere.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **self.keywords}
        with without_dropout(self.target):
            outputs = self.target(**inputs, output_hidden_states=bool(self.layers) and asked_for(self.layers))
        states = joined(outputs, self.layers, input_ids.device) if self.layers else outputs.logits[..., :0]
        return TeacherOutputs(input_ids, attention_mask, self.counted(labels), outputs.logits, states)

    @staticmethod
    def counted(labels: Tensor) -> Tensor:
        """After which tokens a text goes on with one of its answer, `(batch, length)`."""
        counted = torch.zeros_like(labels, dtype=torch.bool)
        counted[:, :-1] = labels[:, 1:] != -100
        return counted


@dataclass(frozen=True)
class Prediction:
    """Guesses of the target's distributions.

    Attributes:
        logits: `(batch, n, drafted)`, over the student's vocabulary.
        positions: `(batch, n)`, where in the text stands the distribution that is guessed. Guesses of what belongs to no answer
            do not count.
        weights: `(batch, n)`, of the loss of each guess; 0: it does not count.
    """

    logits: Tensor
    positions: Tensor
    weights: Tensor

    @classmethod
    def along(cls, logits: Tensor, ahead: int = 0, weight: float = 1.0) -> "Prediction":
        """Predictions at each place of a text, `ahead` positions ahead."""
        num_guesses = logits.shape[1]
        positions = torch.arange(ahead, ahead + num_guesses, device=logits.device).expand(len(logits), -1)
        return cls(logits, positions, torch.full_like(positions, weight, dtype=torch.float32))


class Student:
    """A draft in training.

    Attributes:
        module: what the Trainer trains; its forward takes `inputs(lesson)`.
        kind: what the card calls it.
        hidden_layers: hidden states of the target that it reads, as `RecordingModel` counts them.
        vocabulary: `(drafted,)` target ids of its logits; `None`: the first `drafted` ids, in order.
        max_draft_tokens: the longest draft that it was made for; `None` for any.
        generator: what it draws random numbers from; `None`: torch's global one.
    """

    module: nn.Module
    kind: str
    hidden_layers: tuple[int, ...] = ()
    vocabulary: Tensor | None = None
    max_draft_tokens: int | None = None
    generator: torch.Generator | None = None

    def inputs(self, lesson: TeacherOutputs) -> dict[str, Any]:
        """Keywords of the module's forward."""
        raise NotImplementedError

    def predictions(self, outputs: Any, lesson: TeacherOutputs) -> list[Prediction]:
        """What the module's forward guesses."""
        raise NotImplementedError

    def draft(self) -> PreTrainedModel:
        """What `draft_model=` takes, with the weights as they are now."""
        raise NotImplementedError

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Writes what `draft_model=` loads."""
        raise NotImplementedError


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


def collated(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Examples as one batch, right-padded with zeros; answers are the labels."""
    ids, mask = padded([[*one.prompt_ids, *one.new_ids] for one in examples], 0, left=False)
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
