"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .adapters import with_adapter, without_adapter
    from .batches import Completion, generate_batches
    from .compatibility import Compatibility, check
    from .configuration import SpeculativeConfig
    from .decoding import GenerateSpeculativeOutput
    from .embedded import embedded_pair
    from .evaluation import Evaluation, Recommendation, Setting, Totals, evaluate
    from .generation import SpeculativeGenerationMixin, attach, detach, generate, patch_transformers
    from .hub.card import card
    from .hub.pairing import from_pretrained, save_pretrained
    from .statistics import RowStatistics, Statistics, record
    from .training import SpeculativeEvalCallback, SpeculativeSeq2SeqTrainer, SpeculativeTrainerMixin
    from .types import Batch, Draft, Drafter, Round, Rule, Schedule, Verdict
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".adapters": ["with_adapter", "without_adapter"],
            ".batches": ["Completion", "generate_batches"],
            ".compatibility": ["Compatibility", "check"],
            ".configuration": ["SpeculativeConfig"],
            ".decoding": ["GenerateSpeculativeOutput"],
            ".embedded": ["embedded_pair"],
            ".evaluation": ["Evaluation", "Recommendation", "Setting", "Totals", "evaluate"],
            ".generation": ["SpeculativeGenerationMixin", "attach", "detach", "generate", "patch_transformers"],
            ".hub.card": ["card"],
            ".hub.pairing": ["from_pretrained", "save_pretrained"],
            ".statistics": ["RowStatistics", "Statistics", "record"],
            ".training": ["SpeculativeEvalCallback", "SpeculativeSeq2SeqTrainer", "SpeculativeTrainerMixin"],
            ".types": ["Batch", "Draft", "Drafter", "Round", "Rule", "Schedule", "Verdict"],
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Compatibility",
    "Completion",
    "Draft",
    "Drafter",
    "Evaluation",
    "GenerateSpeculativeOutput",
    "Recommendation",
    "Round",
    "RowStatistics",
    "Rule",
    "Schedule",
    "Setting",
    "SpeculativeConfig",
    "SpeculativeEvalCallback",
    "SpeculativeGenerationMixin",
    "SpeculativeSeq2SeqTrainer",
    "SpeculativeTrainerMixin",
    "Statistics",
    "Totals",
    "Verdict",
    "attach",
    "card",
    "check",
    "detach",
    "embedded_pair",
    "evaluate",
    "from_pretrained",
    "generate",
    "generate_batches",
    "patch_transformers",
    "record",
    "save_pretrained",
    "with_adapter",
    "without_adapter",
]
