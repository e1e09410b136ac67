"""Which kind of student a draft becomes; a small model is one, whole, truncated or by a LoRA."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import MuseGlimmerAssistantConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.sources import source_of
from ..heads.eagle3_config import Eagle3Config
from ..hf_compat import tied_weights
from .dflash_student import DFlashStudent
from .eagle3_student import Eagle3Student
from .teacher import Prediction, Student, TeacherOutputs


class DraftStudent(Student):
    """A causal model that guesses each token from those before it.

    Args:
        draft: is trained itself; in float32.
        lora_rank: train a LoRA of this rank instead, and keep its other weights.

    Raises:
        ValueError: it cannot draft for the target, or peft is missing.
    """

    def __init__(self, draft: PreTrainedModel, target: PreTrainedModel, lora_rank: int | None = None):
        checks.check_model(draft, "draft_model")
        check_fits(draft, target)
        self.kind = "draft model"
        self.module: Any = draft
        if lora_rank is not None:
            self.kind = f"draft model, LoRA of rank {lora_rank}"
            self.module = _with_lora(draft, lora_rank)

    def inputs(self, lesson: TeacherOutputs) -> dict[str, Any]:
        return {"input_ids": lesson.ids, "attention_mask": lesson.attention_mask, "use_cache": False}

    def predictions(self, outputs: Any, lesson: TeacherOutputs) -> list[Prediction]:
        return [Prediction.along(outputs.logits)]

    def draft(self) -> PreTrainedModel:
        return checks.unwrap(self.module, "draft_model")

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        model = self.module
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def _with_lora(draft: PreTrainedModel, rank: int):
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("a LoRA needs peft: pip install 'hf_speculative[peft]'.") from error
    with warnings.catch_warnings():  # peft asks for names that transformers is about to change
        warnings.simplefilter("ignore", FutureWarning)
        # All linear layers but the head, as in QLoRA (arXiv 2305.14314).
        return get_peft_model(draft, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def check_fits(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Refuse a model that cannot draft for the target."""
    source = source_of("draft_model", draft)
    checks.check_source(source, target)
    source.check_ids(target)


def truncated(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A copy of the target's embeddings, first layers and head, in float32: a start from which few steps lead to a draft.

    Raises:
        ValueError: it has fewer layers, or is not made of layers that can be left out.
    """
    total = check_layers(target, num_layers)
    config = copy.deepcopy(target.config)
    text = config.get_text_config(decoder=True)
    for name, value in list(vars(text).items()):  # `layer_types` and its kin say something of each layer
        if isinstance(value, list) and len(value) == total:
            setattr(text, name, value[:num_layers])
    text.num_hidden_layers = num_layers
    config.dtype = torch.float32
    draft = type(target)(config).float()
    absent = draft.load_state_dict(target.state_dict(), strict=False).missing_keys
    if missing := [name for name in absent if name not in tied_weights(draft)]:
        reason = f"{type(target).__name__} cannot be cut off after {num_layers} layers for lack of {missing[0]}"
        raise ValueError(f"{reason}: give `head='draft:FOLDER'`.")
    draft.generation_config = copy.deepcopy(target.generation_config)
    return draft.eval()


def check_layers(target: PreTrainedModel, num_layers: int) -> int:
    """How many layers the target has.

    Raises:
        ValueError: not more than `num_layers`.
    """
    total = getattr(target.config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not isinstance(total, int) or not 1 <= num_layers < total:
        raise ValueError(f"`head='layers:{num_layers}'`: the target has {total} layers, give fewer, and 1 or more.")
    return total


def student_of(
    draft: PreTrainedModel, target: PreTrainedModel, ttt_steps: int = 3, ttt_decay: float = 0.8, anchors: int = 64
) -> Student:
    """A draft in training: the draft itself, no copy of it.

    Args:
        ttt_steps, ttt_decay: of an EAGLE-3 head, see `Eagle3Student`.
        anchors: of a DFlash block, see `DFlashStudent`.

    Raises:
        ValueError: it cannot draft for the target, or is a head of a kind that is not trained here.
    """
    if not source_of("draft_model", draft).reads_target:
        return DraftStudent(draft, target)
    check_fits(draft, target)
    config = draft.config
    if isinstance(config, Eagle3Config) and not config.is_parallel:
        return Eagle3Student(draft, target, ttt_steps, ttt_decay)
    has_more = getattr(draft, "chain", None) is not None or getattr(config, "enable_confidence_head", False)
    if isinstance(config, MuseGlimmerAssistantConfig) and not has_more:
        return DFlashStudent(draft, target, anchors)
    others = "without what other kinds add to them (P-EAGLE, DFlash 2, DSpark, MTP)"
    reason = f"EAGLE-3 heads and DFlash blocks are trained here, {others}"
    raise ValueError(f"a head of type {type(draft).__name__}: {reason}. Give one of these, or a small model.")
