"""Training with transformers' Trainer: evaluation that generates with a draft, its statistics logged like any metric."""

from transformers.utils import is_accelerate_available

if not is_accelerate_available():
    raise ImportError("transformers' Trainer needs accelerate: pip install 'hf_speculative[accelerate]'")

from .trainer import SpeculativeSeq2SeqTrainer, SpeculativeTrainerMixin

__all__ = ["SpeculativeSeq2SeqTrainer", "SpeculativeTrainerMixin"]
