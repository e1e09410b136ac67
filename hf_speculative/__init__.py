"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from typing import TYPE_CHECKING

from .lazy import lazy_names
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .batches import Completion as Completion
    from .batches import generate_batches as generate_batches
    from .call.adapters import with_adapter as with_adapter
    from .call.adapters import without_adapter as without_adapter
    from .call.configuration import SpeculativeConfig as SpeculativeConfig
    from .call.output import GenerateSpeculativeOutput as GenerateSpeculativeOutput
    from .call.statistics import RowStatistics as RowStatistics
    from .call.statistics import Statistics as Statistics
    from .call.statistics import record as record
    from .compatibility.answer import Compatibility as Compatibility
    from .compatibility.answer import check as check
    from .compatibility.audit import Audit as Audit
    from .compatibility.audit import audit as audit
    from .distillation.learner import Learner as Learner
    from .drafting.source import DraftSource as DraftSource
    from .drafting.suffix.store import SuffixStore as SuffixStore
    from .embedded import embedded_pair as embedded_pair
    from .embedded.examples import example_pair as example_pair
    from .generation import SpeculativeGenerationMixin as SpeculativeGenerationMixin
    from .generation import attach as attach
    from .generation import detach as detach
    from .generation import generate as generate
    from .generation import patch_transformers as patch_transformers
    from .hub.card import card as card
    from .hub.pairing import from_pretrained as from_pretrained
    from .hub.pairing import save_pretrained as save_pretrained
    from .integrations.trainer import SpeculativeSeq2SeqTrainer as SpeculativeSeq2SeqTrainer
    from .integrations.trainer import SpeculativeTrainerMixin as SpeculativeTrainerMixin
    from .interfaces import Drafter as Drafter
    from .interfaces import Rule as Rule
    from .interfaces import Schedule as Schedule
    from .measuring import Evaluation as Evaluation
    from .measuring import Recommendation as Recommendation
    from .measuring import Setting as Setting
    from .measuring import Totals as Totals
    from .measuring import evaluate as evaluate
    from .types import Batch as Batch
    from .types import Draft as Draft
    from .types import Round as Round
    from .types import Verdict as Verdict
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
