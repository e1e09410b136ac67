"""How many tokens to guess next. One file a schedule."""

from .confidence import ConfidenceStop
from .constant import Constant
from .heuristic import Heuristic
from .together import Together

SCHEDULES = (Constant, Heuristic, ConfidenceStop, Together)

__all__ = ["SCHEDULES", "ConfidenceStop", "Constant", "Heuristic", "Together"]
