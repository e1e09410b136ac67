"""How many tokens to guess next. One file a schedule."""

from .confidence import ConfidenceStop
from .constant import Constant
from .heuristic import Heuristic

SCHEDULES = (Constant, Heuristic, ConfidenceStop)

__all__ = ["SCHEDULES", "ConfidenceStop", "Constant", "Heuristic"]
