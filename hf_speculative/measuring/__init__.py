"""Measure drafts against plain decoding on the same prompts: which draft, how many tokens, and how much it brings."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .calls import Decoded
    from .recommendation import Recommendation
    from .results import Evaluation
    from .rivals import Rival
    from .run import evaluate
    from .settings import Setting
    from .totals import Totals
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = ["Decoded", "Evaluation", "Recommendation", "Rival", "Setting", "Totals", "evaluate"]
