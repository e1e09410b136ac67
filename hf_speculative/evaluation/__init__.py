"""Evaluation on data sets: which draft, how many tokens, and how much it brings."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .results import Evaluation, Recommendation, Totals
    from .run import evaluate
    from .settings import Setting
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".results": ["Evaluation", "Recommendation", "Totals"],
            ".run": ["evaluate"],
            ".settings": ["Setting"],
        },
    )

__all__ = ["Evaluation", "Recommendation", "Setting", "Totals", "evaluate"]
