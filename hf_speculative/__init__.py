"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from importlib import import_module
from typing import Any

from .adapters import with_adapter, without_adapter
from .batches import Completion, generate_batches
from .compatibility import Compatibility, check
from .configuration import SpeculativeConfig
from .decoding import GenerateSpeculativeOutput
from .embedded import embedded_pair
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
    "GenerateSpeculativeOutput",
    "Round",
    "RowStatistics",
    "Rule",
    "Schedule",
    "SpeculativeConfig",
    "SpeculativeGenerationMixin",
    "Statistics",
    "Verdict",
    "attach",
    "check",
    "detach",
    "embedded_pair",
    "generate",
    "generate_batches",
    "patch_transformers",
    "record",
    "with_adapter",
    "without_adapter",
]

#: public names, and rooms, that import what not every user has or wants
_LAZY = {
    "training": ".training",
    "SpeculativeEvalCallback": ".training",
    "SpeculativeSeq2SeqTrainer": ".training",
    "SpeculativeTrainerMixin": ".training",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name], __name__)
    return getattr(module, name, module)
