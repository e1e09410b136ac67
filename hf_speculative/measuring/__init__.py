"""Measure drafts against plain decoding on the same prompts: which draft, how many tokens, and how much it brings."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .calls import Decoded, Rival
    from .results import Evaluation, Totals
    from .run import evaluate
    from .settings import Setting
    from .speedup import Recommendation
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = ["Decoded", "Evaluation", "Recommendation", "Rival", "Setting", "Totals", "evaluate"]
