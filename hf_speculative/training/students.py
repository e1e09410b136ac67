"""Make the student that `--head` names."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..distillation.dflash_student import BLOCKS, new_block
from ..distillation.eagle3_student import new_head
from ..distillation.kinds import DraftStudent, check_layers, student_of, truncated
from ..distillation.teacher import Example, Student, Teacher, token_counts
from ..heads import layout_of
from ..models.loading import auto_class_for, load_model
from ..tokenizers.loading import tokenizer_of_draft
from .settings import TABLES, Settings


def check(settings: Settings, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whether a head of this kind can be made for the target, before it writes any answer.

    Raises:
        ValueError: it cannot, and why.
    """
    if target.config.is_encoder_decoder:
        raise ValueError(f"{type(target).__name__} is an encoder-decoder model: drafts are for decoder-only targets.")
    if settings.kind == TABLES:
        return
    if settings.kind == "layers":
        check_layers(target, int(settings.value))
    elif is_head(settings):
        small = replace(settings, draft_vocab_size=1)
        Teacher(target, new_student(small, target, ()).hidden_layers)
    elif auto_class_for(settings.value) and tokenizer_of_draft(settings.value, tokenizer) is not None:
        raise ValueError(f"`head={settings.head!r}`: its tokenizer is not the target's: give another head.")


def is_head(settings: Settings) -> bool:
    """It reads the target's states, and is no model of its own."""
    return settings.kind in (*BLOCKS, "eagle3") or (settings.kind == "draft" and layout_of(settings.value) is not None)


def new_student(settings: Settings, target: PreTrainedModel, examples: Sequence[Example]) -> Student:
    """What is trained, on random weights where it does not go on from others."""
    torch.manual_seed(settings.seed)
    counts = token_counts(examples, target.config.get_text_config(decoder=True).vocab_size)
    size, length = settings.draft_vocab_size, settings.draft_tokens
    if settings.kind == "layers":
        draft: PreTrainedModel = truncated(target, int(settings.value))
    elif settings.kind in BLOCKS:
        draft = new_block(target, counts, size, settings.kind, length, settings.head_layers)
    elif settings.kind == "eagle3":
        draft = new_head(target, counts, size, num_draft_tokens=length)
    else:
        draft = load_model(settings.value, dtype=torch.float32)
    draft = draft.to(target.device)
    student = student_of(draft, target, settings.ttt_steps, settings.ttt_decay, settings.anchors)
    if settings.lora_rank is None:
        return student
    if student.hidden_layers:
        raise ValueError(f"`lora_rank={settings.lora_rank}`: {settings.value} holds a head, no draft model: leave it out.")
    return DraftStudent(draft, target, settings.lora_rank)
