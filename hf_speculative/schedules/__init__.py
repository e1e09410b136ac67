"""How many tokens to draft next. One file for each schedule."""

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
#: those that `num_assistant_tokens_schedule` can name, each made from a number of tokens
SCHEDULE_NAMES = {
    "adaptive": Adaptive,
    "constant": Constant,
    "heuristic": Heuristic,
    "heuristic_transient": Heuristic,
}
