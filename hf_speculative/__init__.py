"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from importlib import import_module
from typing import Any

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

#: public names, and a room, that are imported when they are first asked for: not every user wants what they import
_LAZY = {
    "SpeculativeEvalCallback": ".training",
    "SpeculativeSeq2SeqTrainer": ".training",
    "SpeculativeTrainerMixin": ".training",
    "card": ".hub.card",
    "from_pretrained": ".hub.pairing",
    "save_pretrained": ".hub.pairing",
    "training": ".training",
}

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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name], __name__)
    return getattr(module, name, module)
