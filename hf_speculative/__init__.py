"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from typing import TYPE_CHECKING

from .lazy import lazy_names
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .batches import Completion, generate_batches
    from .call.adapters import with_adapter, without_adapter
    from .call.configuration import SpeculativeConfig
    from .call.output import GenerateSpeculativeOutput
    from .call.statistics import RowStatistics, Statistics, record
    from .compatibility.answer import Compatibility, check
    from .compatibility.audit import Audit, audit
    from .drafting.source import DraftSource
    from .drafting.suffix.store import SuffixStore
    from .embedded import embedded_pair
    from .embedded.examples import example_pair
    from .generation import SpeculativeGenerationMixin, attach, detach, generate, patch_transformers
    from .hub.card import card
    from .hub.pairing import from_pretrained, save_pretrained
    from .integrations.trainer import SpeculativeSeq2SeqTrainer, SpeculativeTrainerMixin
    from .interfaces import Drafter, Rule, Schedule
    from .measuring import Evaluation, Recommendation, Setting, Totals, evaluate
    from .types import Batch, Draft, Round, Verdict
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = [
    "Audit",
    "Batch",
    "Compatibility",
    "Completion",
    "Draft",
    "DraftSource",
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
    "SpeculativeSeq2SeqTrainer",
    "SpeculativeTrainerMixin",
    "Statistics",
    "SuffixStore",
    "Totals",
    "Verdict",
    "attach",
    "audit",
    "card",
    "check",
    "detach",
    "embedded_pair",
    "evaluate",
    "example_pair",
    "from_pretrained",
    "generate",
    "generate_batches",
    "patch_transformers",
    "record",
    "save_pretrained",
    "with_adapter",
    "without_adapter",
]
