"""What the schedule of a call has learned about its pair, as a start for later calls, in memory.

Greedy and reproducible calls, whose tokens do not depend on how many are drafted, go on learning. Sampled ones stop after
`SETTLED` calls, so that from then on a seed gives the same tokens again.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from ..interfaces import Schedule
from ..models import Inputs, is_sharded
from ..models.model_state import kept_with
from .configuration import Options
from .measured_costs import SETTLED


class ScheduleState:
    """The place in memory for what calls like this one have learned; it goes with the models."""

    def __init__(self, options: Options, model: PreTrainedModel, inputs: Inputs):
        source, is_sampled = options.source, bool(inputs.generation_config.do_sample)
        self.place: dict[tuple, tuple[int, Any]] = {}
        self.most = SETTLED if is_sampled and not options.config.reproducible else None
        # What a user's own schedule learns ends with the call; ranks may have been in different calls before.
        is_own = options.config.schedule is not None
        if not (is_own or options["synced_gpus"] or is_sharded(model) or is_sharded(source.draft_model)):
            of_target = kept_with(model).setdefault(ScheduleState, WeakKeyDictionary())
            self.place = of_target.setdefault(source.costs_end_with(model), {})
        self.kind = (source.cost_key, is_sampled, options.schedule_name, options.num_draft_tokens, *inputs.others)

    def start(self, schedule: Schedule) -> None:
        _, known = self.place.get(self.kind, (0, None))
        if known is not None and schedule.learned is not None:
            schedule.learned = copy.deepcopy(known)

    def keep(self, schedule: Schedule) -> None:
        num_calls, _ = self.place.get(self.kind, (0, None))
        if schedule.learned is not None and (self.most is None or num_calls < self.most):
            self.place[self.kind] = num_calls + 1, copy.deepcopy(schedule.learned)
