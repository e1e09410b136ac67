"""What is trained: from a lesson of the target's to logits that are compared with its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .teacher import Lesson


@dataclass(frozen=True)
class Prediction:
    """Guesses of tokens that lie equally far ahead.

    Attributes:
        logits: `(batch, n, drafted)`, over the student's vocabulary.
        first: `logits[:, i]` are compared with the target's at position `first + i`.
        weight: of this loss among all.
    """

    logits: Tensor
    first: int = 0
    weight: float = 1.0


class Student:
    """A draft in training.

    Attributes:
        module: what the Trainer trains; its forward takes `inputs(lesson)`.
        kind: what the card calls it.
        hidden_layers: hidden states of the target that it reads, as `RecordingModel` counts them.
        vocabulary: `(drafted,)` ids of the target that its logits stand for; `None`: the first so many, in order.
        max_draft_tokens: the longest draft that it was made for; `None` for any.
    """

    module: nn.Module
    kind: str
    hidden_layers: tuple[int, ...] = ()
    vocabulary: Tensor | None = None
    max_draft_tokens: int | None = None

    def inputs(self, lesson: Lesson) -> dict[str, Any]:
        """Keywords of the module's forward."""
        raise NotImplementedError

    def predictions(self, outputs: Any) -> list[Prediction]:
        """What the module's forward guesses."""
        raise NotImplementedError

    def draft(self) -> PreTrainedModel:
        """What `draft_model=` takes, with the weights as they are now."""
        raise NotImplementedError

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Writes what `draft_model=` loads."""
        raise NotImplementedError
