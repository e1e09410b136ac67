"""Students, the drafts in training: from the teacher's outputs to logits that are compared with the target's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .teacher import TeacherOutputs


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
