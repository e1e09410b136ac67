"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from .adapters import with_adapter, without_adapter
from .batches import Completion, generate_batches
from .compatibility import Compatibility, check
from .configuration import SpeculativeConfig
from .decoding import GenerateSpeculativeOutput
from .embedded import embedded_pair
from .evaluation import Evaluation, Recommendation, Setting, Totals, evaluate
from .generation import (
    SpeculativeGenerationMixin,
    attach,
    detach,
    generate,
    patch_transformers,
)
from .statistics import RowStatistics, Statistics, record
from .types import Batch, Draft, Drafter, Round, Rule, Schedule, Verdict

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
    "SpeculativeGenerationMixin",
    "Statistics",
    "Totals",
    "Verdict",
    "attach",
    "check",
    "detach",
    "embedded_pair",
    "evaluate",
    "generate",
    "generate_batches",
    "patch_transformers",
    "record",
    "with_adapter",
    "without_adapter",
]
