"""From `--head` to what is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.loading import auto_class_for, load_model
from ..tokenizers.loading import tokenizer_of_draft
from .draft_student import DraftStudent, check_layers, truncated
from .eagle3_student import Eagle3Student, layers_read, new_head, num_layers
from .examples import Example, token_counts
from .settings import Settings
from .student import Student
from .teacher import Teacher


def check(settings: Settings, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whether a head of this kind can be made for the target, before it writes any answer.

    Raises:
        ValueError: it cannot, and why.
    """
    if target.config.is_encoder_decoder:
        raise ValueError(
            f"{type(target).__name__} is an encoder-decoder model: drafts are trained for decoder-only targets."
        )
    if settings.kind == "eagle3":
        new_head(target, torch.zeros(_vocab_size(target)), draft_vocab_size=1)
        Teacher(target, layers_read(num_layers(target)))
    elif settings.kind == "layers":
        check_layers(target, int(settings.value))
    elif auto_class_for(settings.value) and tokenizer_of_draft(settings.value, tokenizer) is not None:
        raise ValueError(
            f"`head={settings.head!r}`: its tokenizer is not the target's, so that its distributions are over other tokens. "
            "Give a model with the target's tokenizer, or `head='layers:N'`."
        )


def new_student(settings: Settings, target: PreTrainedModel, examples: Sequence[Example]) -> Student:
    """What is trained, on random weights where it does not go on from others."""
    torch.manual_seed(settings.seed)
    if settings.kind == "eagle3":
        counts = token_counts(examples, _vocab_size(target))
        head = new_head(target, counts, settings.draft_vocab_size, num_draft_tokens=settings.num_draft_tokens)
        return Eagle3Student(head.to(target.device), target, settings.ttt_steps, settings.ttt_decay)
    if settings.kind == "layers":
        draft = truncated(target, int(settings.value))
    else:
        draft = load_model(settings.value, dtype=torch.float32)
    return DraftStudent(draft.to(target.device), target, settings.lora_rank)


def _vocab_size(model: PreTrainedModel) -> int:
    return model.config.get_text_config(decoder=True).vocab_size
