"""What earlier calls learned about a pair: costs of rounds, acceptance of drafts, and how long answers are.

The tokens of sampled calls without `reproducible` depend on draft lengths. Such calls use costs that change only once for each
batch size, so that a seed gives the same tokens in later calls. Costs are kept on disk as well, beside the compiled files, so
that a process starts from what earlier ones learned.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import LogitsProcessor, PreTrainedModel

from ..interfaces import Schedule
from ..models import Inputs, is_sharded
from ..models.described import FOLDER, NOT_OF_PASSES, OFF, digest, folder, processor
from ..models.execution import how_passes_run, uncapturable_reason
from ..models.model_state import kept_with
from ..models.pool import num_unreplayed
from ..reports import files
from ..sampling.logits_processors import CONTEXT_FREE
from ..schedules import RoundCosts, Timed
from ..types import Costs
from .configuration import Options

#: assumed costs until a round was timed: the least of verifying a draft token, in plain steps, and the tokens of a pass whose
#: computation takes as long as reading the weights, on a CPU and on other devices
LEAST_VERIFICATION = 0.05
BALANCE_ON_CPU, BALANCE = 32, 256
#: prompts whose answers' lengths are remembered
MOST_PROMPTS = 2**16

#: by target and draft; not among what `keeping` puts aside, since costs do not depend on texts
_costs: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[object, dict[tuple, RoundCosts]]] = WeakKeyDictionary()


class Learned:
    """What calls like this one learned, kept in memory as long as the models.

    Attributes:
        costs: what rounds cost by number of rows, as far as this call may know.
    """

    def __init__(self, options: Options, model: PreTrainedModel, inputs: Inputs, processors: Sequence[LogitsProcessor]):
        source, own, is_sampled = options.source, options.config, bool(inputs.generation_config.do_sample)
        execution = options.execution(model)
        pair = source.costs_end_with(model)
        rule = own.rule if isinstance(own.rule, str) else None
        kinds = (type(p) for p in processors if type(p) in CONTEXT_FREE)
        sampling = (is_sampled, own.reproducible, own.draft_sample_method, rule, *kinds)
        passes = how_passes_run(execution.compile, model, source.draft_model)
        is_captured = execution.captures and uncapturable_reason(model) is None
        where = (model.dtype, model.device, torch.get_num_threads(), is_captured, *passes, *inputs.others)
        costs = _costs.setdefault(model, WeakKeyDictionary()).setdefault(pair, {})
        # Ranks may have been in different calls before, and wait for each other.
        is_alone = not (options["synced_gpus"] or is_sharded(model) or is_sharded(source.draft_model))
        key = (source.cost_key, *sampling, *where)
        if key not in costs:
            costs[key] = RoundCosts(source.cost_of_token(model), partial(_verification, model.device))
            if is_alone:
                restore_costs(costs[key], key, model, pair)
        self._costs = costs[key]
        self.is_ours = is_alone and own.schedule is None  # what a user's own schedule learns ends with the call
        self._num_first = partial(num_unreplayed, model, source.draft_model) if is_captured else int
        # In other sampled calls tokens depend on draft lengths.
        self.is_kept = self.is_ours and (not is_sampled or bool(own.reproducible))
        self.costs: Callable[[int], Costs] = self._costs
        self._settled: frozenset[int] | None = None
        if not self.is_kept:
            self.costs, self._settled = self._costs.settled()
        self.place: dict[tuple, Any] = kept_with(model).setdefault(Learned, WeakKeyDictionary()).setdefault(pair, {})
        self._answers: dict[int, float] = kept_with(model).setdefault("lengths of answers", {})
        self._notes_answers = self.is_kept and options.rows_at_once is not None
        length = (options.schedule_name, options.num_draft_tokens, options["assistant_confidence_threshold"])
        self.kind = (source.label, source.cost_key, is_sampled, *length, *inputs.others)

    def timed(self, schedule: Schedule) -> Schedule:
        """Wrap `schedule` so that its rounds are timed for later calls."""
        if self.is_ours and schedule.weighs_costs:
            return Timed(schedule, self._costs, self._num_first, self._settled)
        return schedule

    def start(self, schedule: Schedule) -> None:
        """Start the schedule from what earlier calls learned."""
        known = self.place.get(self.kind)
        if self.is_kept and known is not None and schedule.learned is not None:
            schedule.learned = known

    def keep(self, schedule: Schedule) -> None:
        """Keep what `schedule` learned for later calls, and costs for later processes."""
        if self.is_ours:
            write_costs(self._costs)
        if self.is_kept and schedule.learned is not None:  # not of one that drafts nothing
            self.place[self.kind] = schedule.learned

    def note_answer(self, prompt: list[int], num_tokens: int) -> None:
        """Keep the length of an answer, halfway between the last one to the same prompt and those before."""
        if self._notes_answers:
            key = hash(tuple(prompt))
            self._answers[key] = (self._answers.pop(key, num_tokens) + num_tokens) / 2
            if len(self._answers) > MOST_PROMPTS:
                del self._answers[next(iter(self._answers))]

    def longest_first(self, prompts: list[list[int]]) -> list[int]:
        """The order in which rows start, so that a batch does not end with a long one alone. Unknown ones count as the mean."""
        if not (self._notes_answers and self._answers):
            return list(range(len(prompts)))
        mean = fmean(self._answers.values())
        return sorted(range(len(prompts)), key=lambda row: -self._answers.get(hash(tuple(prompts[row])), mean))


def _verification(device: torch.device, num_rows: int) -> float:
    """The assumed cost, in plain steps, of one more token in each row: weights are read once, computation is per token."""
    share = num_rows / (BALANCE_ON_CPU if device.type == "cpu" else BALANCE)
    return max(LEAST_VERIFICATION, share / (1 + share))


#: a file is written again once this many times as many rounds were timed: few writes, and an interrupted process loses little
MORE = 1.5
#: changes with what a file holds, so that older ones are not read
FORMAT = 2
logger = logging.getLogger(__name__)


def restore_costs(costs: RoundCosts, key: tuple, target: PreTrainedModel, draft: object) -> None:
    """Start `costs` of calls with `key` from their file, if there is one.

    A draft that is no model has none: its class does not say what it costs.
    """
    if os.environ.get(FOLDER) == OFF or not isinstance(draft, PreTrainedModel):
        return
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else processor()
    machine = [device, torch.backends.cpu.get_cpu_capability(), torch.__version__]
    configs = [model.config.to_dict() | dict.fromkeys(NOT_OF_PASSES) for model in (target, draft)]
    name = digest([FORMAT, machine, repr((key, configs))])[:24]
    costs.path = folder() / "costs" / f"{type(target).__name__}-{name}.json"
    try:
        costs.restore(json.loads(costs.path.read_text()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:  # whatever the file holds
        logger.warning(f"Costs of drafts are measured anew: {costs.path} cannot be read ({error}).")


def write_costs(costs: RoundCosts) -> None:
    """Write `costs`, if much was learned since; a folder that cannot be written to keeps nothing."""
    if costs.path is None or costs.num_timed < max(1, MORE * costs.num_stored):
        return
    costs.num_stored = costs.num_timed
    with suppress(OSError, ValueError):
        costs.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(costs.path, json.dumps(costs.stored()))
