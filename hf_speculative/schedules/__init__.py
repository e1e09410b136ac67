"""Schedules, which choose the number of draft tokens."""

from ..types import Costs as Costs
from .adaptive import Adaptive
from .best_nodes import BestNodes, HybridSchedule
from .heuristic import Constant, Heuristic
from .round_costs import RoundCosts, Timed
from .wrapped import AlignRows, ConfidenceStop

#: by the names of `num_assistant_tokens_schedule`; each is made from a number of tokens
SCHEDULE_NAMES = {"adaptive": Adaptive, "constant": Constant, "heuristic": Heuristic, "heuristic_transient": Heuristic}
