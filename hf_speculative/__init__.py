"""Speculative decoding for transformers: exact, batched, through `model.generate(..., draft_model=small)`."""

from typing import TYPE_CHECKING

from .lazy import lazy_names
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .batches import Completion as Completion, generate_batches as generate_batches
    from .call.adapters import with_adapter as with_adapter, without_adapter as without_adapter
    from .call.configuration import SpeculativeConfig as SpeculativeConfig
    from .call.output import GenerateSpeculativeOutput as GenerateSpeculativeOutput
    from .call.statistics import RowStatistics as RowStatistics, Statistics as Statistics, record as record
    from .compatibility.answer import Compatibility as Compatibility, check as check
    from .compatibility.audit import Audit as Audit, audit as audit
    from .distillation.learner import Learner as Learner
    from .drafting.source import DraftSource as DraftSource
    from .drafting.suffix.store import SuffixStore as SuffixStore
    from .embedded import embedded_pair as embedded_pair, example_pair as example_pair
    from .generation import (
        SpeculativeGenerationMixin as SpeculativeGenerationMixin,
        attach as attach,
        detach as detach,
        generate as generate,
        patch_transformers as patch_transformers,
    )
    from .hub.card import card as card
    from .hub.pairing import from_pretrained as from_pretrained, save_pretrained as save_pretrained
    from .integrations.trainer import (
        SpeculativeSeq2SeqTrainer as SpeculativeSeq2SeqTrainer,
        SpeculativeTrainerMixin as SpeculativeTrainerMixin,
    )
    from .interfaces import Drafter as Drafter, Rule as Rule, Schedule as Schedule
    from .measuring import (
        Evaluation as Evaluation,
        Recommendation as Recommendation,
        Setting as Setting,
        Totals as Totals,
        evaluate as evaluate,
    )
    from .types import Batch as Batch, Draft as Draft, Round as Round, Verdict as Verdict
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
