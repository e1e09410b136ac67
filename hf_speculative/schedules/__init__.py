"""Schedules, which choose the number of draft tokens, one file each."""

from ..types import Costs
from .adaptive import Adaptive
from .align_rows import AlignRows
from .best_nodes import BestNodes
from .confidence import ConfidenceStop
from .constant import Constant
from .heuristic import Heuristic
from .hybrid import HybridSchedule
from .round_costs import RoundCosts
from .timed import Timed

SCHEDULES = (Adaptive, BestNodes, Constant, HybridSchedule, Heuristic, ConfidenceStop, AlignRows)
#: by the names of `num_assistant_tokens_schedule`; each is made from a number of tokens
SCHEDULE_NAMES = {"adaptive": Adaptive, "constant": Constant, "heuristic": Heuristic, "heuristic_transient": Heuristic}
