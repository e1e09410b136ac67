"""How many tokens to draft next. One file for each schedule."""

from ..types import Costs
from .adaptive import Adaptive
from .best_nodes import BestNodes
from .chain_or_tree import ChainOrTree
from .confidence import ConfidenceStop
from .constant import Constant
from .free_or_paid import FreeOrPaid
from .heuristic import Heuristic
from .together import Together

SCHEDULES = (Adaptive, BestNodes, ChainOrTree, Constant, FreeOrPaid, Heuristic, ConfidenceStop, Together)
#: those that `num_assistant_tokens_schedule` can name, each made from a number of tokens
SCHEDULE_NAMES = {
    "adaptive": Adaptive,
    "constant": Constant,
    "heuristic": Heuristic,
    "heuristic_transient": Heuristic,
}

__all__ = [
    "SCHEDULES",
    "SCHEDULE_NAMES",
    "Adaptive",
    "BestNodes",
    "ChainOrTree",
    "ConfidenceStop",
    "Constant",
    "Costs",
    "FreeOrPaid",
    "Heuristic",
    "Together",
]
