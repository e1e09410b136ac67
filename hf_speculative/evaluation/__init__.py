"""Evaluation on data sets: which draft, how many tokens, and how much it brings."""

from .results import Evaluation, Recommendation, Totals
from .run import evaluate
from .settings import Setting

__all__ = ["Evaluation", "Recommendation", "Setting", "Totals", "evaluate"]
