"""What the schedule of a call has learned about its pair, as a start for later calls.

Only in calls whose tokens do not depend on how many are drafted: greedy ones, and those that are `reproducible`. Elsewhere the
same seed would give other tokens in a later call. A call decides from its own rounds and from calls that were over before.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from ..interfaces import Schedule
from ..models import Inputs, is_sharded
from ..models.model_state import kept_with
from .configuration import Options


class ScheduleState:
    """The place in memory for what calls like this one have learned; it goes with the models."""

    def __init__(self, options: Options, model: PreTrainedModel, inputs: Inputs):
        source, is_sampled = options.source, bool(inputs.generation_config.do_sample)
        depends_on_length = is_sampled and not options.config.reproducible
        # What a user's own schedule learns ends with the call; ranks may have been in different calls before.
        is_own = options.config.schedule is not None
        is_alone = not (options["synced_gpus"] or is_sharded(model) or is_sharded(source.draft_model))
        self.place: dict[tuple, Any] = {}
        #: calls like this one may learn, from their own rounds as well
        self.is_allowed = is_alone and not (depends_on_length or is_own)
        if self.is_allowed:
            of_target = kept_with(model).setdefault(ScheduleState, WeakKeyDictionary())
            self.place = of_target.setdefault(source.costs_end_with(model), {})
        self.kind = (source.cost_key, is_sampled, options.schedule_name, options.num_draft_tokens, *inputs.others)

    def start(self, schedule: Schedule) -> None:
        known = self.place.get(self.kind)
        if known is not None and schedule.learned is not None:
            schedule.learned = known

    def keep(self, schedule: Schedule) -> None:
        if schedule.learned is not None:  # not of one that drafts nothing, as where processors cannot look ahead
            self.place[self.kind] = schedule.learned
