"""What rounds cost on this machine: measured in a bounded time before a call's first round, and kept for later calls.

Measuring takes a small share of all that calls of a pair ask for; a call that does not need its share leaves it to later ones.
So a round of it is begun only where it is expected to fit, the most telling first. What was not reached is assumed, and later
calls go on from there until times agree. Within a call only its own rounds, `online_costs.py`, change what is known.

What is timed are whole rounds of the loop itself, on parts of their own and the last token of each prompt, with chance of their
own: nothing that the call will use is touched. No draft token is kept, so that each round is like the next.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..drafting.source import DraftSource
from ..models import Inputs, how_passes_run, is_sharded, max_positions_of
from ..sampling.logits_processors import CONTEXT_FREE, Processors
from ..types import Batch, Costs, NoDistribution
from ..verification import rule_for
from .configuration import Options
from .parts import default_rule, make_ranks, make_sampler, may_branch, target_and_drafter
from .timed_rounds import TimedRounds
from .timings import Budget, CostTable, Session, Timings, costs_of

#: measuring takes no longer than so many plain steps, nor than this share of the plain steps that a call asks for, nor than
#: that of those that all calls have asked for
MAX_STEPS, MAX_SHARE, SHARE = 8, 0.1, 0.02
#: draft lengths are left out if the models have no room for them, but for those up to this one
SHORT = 8
#: verifying a draft token beside a plain step, where nothing was measured: at least this much; and the tokens of a pass that
#: computes for as long as it reads the weights, on a CPU and on anything else
ASSUMED_VERIFICATION = 0.05
BALANCE_ON_CPU, BALANCE = 32, 256

_known: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[object, dict[tuple, CostTable]]]
_known = WeakKeyDictionary()
_lock = threading.RLock()  # a drafter of a user's may well call `generate` itself


@contextmanager
def _lock_if_free() -> Iterator[bool]:
    is_free = _lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _lock.release()


def assumed_verification(num_rows: int, device: torch.device) -> float:
    """Plain steps of a token more in each row, where nothing was measured: a pass reads weights once, and computes for each."""
    share = num_rows / (BALANCE_ON_CPU if device.type == "cpu" else BALANCE)
    return max(ASSUMED_VERIFICATION, share / (1 + share))


class Probe:
    """The costs of a call's rounds, known or to be measured: what `Schedule.begin` is given.

    Args:
        batch: the call's prompts, nothing generated yet. The others as in `target_and_drafter`.

    Attributes:
        seconds: what measuring took; 0 where nothing was measured.
        found: what is known of calls of this kind, once it was asked for.
    """

    seconds: float = 0.0
    found: CostTable | None = None

    def __init__(
        self,
        options: Options,
        model: PreTrainedModel,
        inputs: Inputs,
        inputs_tensor: Tensor | None,
        batch: Batch,
        processors: LogitsProcessorList,
    ):
        self.options, self.model, self.inputs, self.inputs_tensor = options, model, inputs, inputs_tensor
        self.batch, self.num_rows = batch, len(batch.rows)
        self.processors = LogitsProcessorList(p for p in processors if type(p) in CONTEXT_FREE)

    def __call__(self) -> Costs:
        source = self.options.source
        if source.parts:
            return self._of_parts(source.parts)
        with _lock:
            known = self.found = self._found()
            # Ranks that wait for each other's forwards would measure each other's work.
            if not (self.options["synced_gpus"] or is_sharded(self.model) or is_sharded(source.draft_model)):
                self._measure(known)
            return costs_of(known)

    def _of_parts(self, parts: tuple[DraftSource, DraftSource]) -> Costs:
        """Of drafts and of guesses. Each has its own share of the time, and a call measures one of them."""
        of_drafts, of_guesses = (copy.copy(self) for _ in parts)
        of_guesses.options, of_drafts.options = (replace(self.options, source=source) for source in parts)
        costs, self.seconds = of_drafts(), of_drafts.seconds
        if not self.seconds:
            guesses, self.seconds = of_guesses(), of_guesses.seconds
        else:
            guesses = of_guesses.known()
        return replace(costs, guesses=guesses)

    def known(self) -> Costs:
        """What was measured before, or is assumed."""
        with _lock:
            return costs_of(self._found())

    def compares(self) -> bool:
        """Whether this call is to run a few plain rounds, for those with drafts to be compared with; asked once a call."""
        with _lock:
            assert self.found is not None
            return self.found.compares_next(self.batch.max_length - self.batch.prompt_width)

    def keep(self, session: Session) -> bool:
        """Rounds that the call itself has run, and will run. Not while another call measures: nothing waits for that."""
        assert self.found is not None
        with _lock_if_free() as is_free:
            if is_free:
                self.found.keep(session, self.num_rows)
            return is_free

    def so_far(self) -> Costs | None:
        """What rounds cost by all that is known; `None` while another call measures."""
        assert self.found is not None
        with _lock_if_free() as is_free:
            return costs_of(self.found) if is_free else None

    def _found(self) -> CostTable:
        of_target = _known.setdefault(self.model, WeakKeyDictionary())
        kinds, kind = of_target.setdefault(self.options.source.costs_end_with(self.model), {}), self._kind()
        if kind not in kinds:
            kinds[kind] = CostTable()
            self._add(kinds[kind], self.num_rows)
        return kinds[kind]

    def _add(self, known: CostTable, num_rows: int) -> None:
        lengths = self._with_room(self.options.source.timed_lengths)
        sessions = known.sessions_of(num_rows)
        known.setdefault((num_rows, 0), Timings(self._assumed_per_token(num_rows), lengths, sessions))

    def _kind(self) -> tuple:
        """What the costs of a pair depend on."""
        source, own, config, model = self.options.source, self.options.config, self.inputs.generation_config, self.model
        execution = self.options.execution(model)
        named = own.draft_sample_method, own.rule if isinstance(own.rule, str) else None
        sampling = (config.do_sample, own.reproducible, *named, *(type(p) for p in self.processors))
        place = (self.num_rows, model.dtype, model.device, torch.get_num_threads(), execution.captures)
        passes = how_passes_run(execution.compile, model, source.draft_model)
        return (source.cost_key, *sampling, *self.inputs.others, *place, *passes)

    def _add_tree(self, known: CostTable, num_rows: int, num_levels: int) -> None:
        lengths = self._with_room(self.options.source.timed_trees[num_levels])
        drafted = num_levels * self.options.source.cost_of_token(self.model)
        per_node = drafted / max(1, lengths[0]) + assumed_verification(num_rows, self.model.device)
        sessions, chains = known.sessions_of(num_rows), known[num_rows, 0]
        timings = Timings(per_node, lengths, sessions, num_levels, depth=num_levels, chains=chains)
        known.setdefault((num_rows, num_levels), timings)

    def _with_room(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Those draft lengths that the models have room for, or else the shorter ones, for which there may be none either."""
        room = self._longest() - self._spare(self.batch.prompt_width)
        return tuple(n for n in lengths if n <= max(room, SHORT))

    def _assumed_per_token(self, num_rows: int) -> float:
        return self.options.source.cost_of_token(self.model) + assumed_verification(num_rows, self.model.device)

    def _measure(self, known: CostTable) -> None:
        """Lengthens `known`, by batch size, the call's and, as rows that are done leave, one row; and by levels of trees."""
        num_lanes, waiting = self.num_rows, self.batch.waiting
        rows_a_lane = 1 if waiting is None else math.ceil(1 + len(waiting.rows) / num_lanes)
        asked_for = (self.batch.max_length - self.batch.prompt_width) * rows_a_lane
        num_steps = min(MAX_STEPS, MAX_SHARE * asked_for)
        known.saved += SHARE * asked_for
        # All of it or nothing: to measure little in each of many calls would take more plain steps to compare with. Beside the
        # step that the prompt takes there may be time for nothing, or all is known.
        sizes = [num_rows for num_rows, num_levels in known if num_levels == 0]
        if known.saved < num_steps or known.is_vain(num_steps):
            return
        if all(known.next_to_time(size, num_steps - 1) is None for size in sizes):
            return
        device, start = self.model.device, time.perf_counter()
        budget = Budget(num_steps, make_ranks(self.options, self.model))
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for num_rows in sorted(sizes, key=lambda size: known[size, 0].are_measured):
                    left = budget.left(known[self.num_rows, 0].plain_step) - 1
                    if known.next_to_time(num_rows, left) is not None:
                        self._time(num_rows, known, budget)
        except (torch.OutOfMemoryError, NoDistribution, _NoRoom):
            for timings in known.values():
                timings.can_grow = False  # nor in a later call
        known.saved -= num_steps - budget.left(known[self.num_rows, 0].plain_step)
        self.seconds = time.perf_counter() - start

    def _time(self, num_rows: int, known: CostTable, budget: Budget) -> None:
        """Times rounds of `num_rows` rows, as long as the budget lasts."""
        options, ranks = self.options, budget.ranks
        target, drafter = target_and_drafter(options, self.model, self.inputs, self.inputs_tensor)
        drafter = ranks.drafter(drafter)
        drafter.follow(target)
        # Parts that keep their rows together were prepared for these very prompts: they read them whole, which may take long.
        is_whole = target.keeps_rows_together or drafter.keeps_rows_together
        if not is_whole:
            self._add(known, 1)
        elif known[num_rows, 0].wanted(budget.num_steps - self._steps_to_read()) is None:
            return
        batch = self._scratch(num_rows, self.batch.prompt_width if is_whole else min(1, self.batch.prompt_width))
        generator = torch.Generator(batch.tokens.device).manual_seed(0)
        config = replace(options.config, generator=generator)
        processors = Processors(self.processors, num_rows)
        sampler = make_sampler(config, self.model, batch, processors, self.inputs.generation_config)
        own_rule = config.rule if isinstance(config.rule, str) else None
        rule = ranks.rule(rule_for(own_rule) or default_rule(sampler, drafter))
        sampler.keeps_draft_probs = rule.reads_draft_probs
        drafter.may_branch = batch.branches = may_branch(drafter, self.model, target, sampler, rule)
        if drafter.may_branch and num_rows == self.num_rows:
            for num_levels in options.source.timed_trees:
                self._add_tree(known, num_rows, num_levels)
        drafter.begin(batch, sampler)
        rounds = TimedRounds(batch, target, drafter, rule, ranks.sampler(sampler), budget)
        execution = options.execution(self.model)
        if execution.compile is True or execution.captures:
            rounds.compile(options.source.timed_lengths)
        elif is_whole:  # by the target, and by the draft
            rounds.seconds_of_next(0)
            rounds.seconds_of_next(1)
        session = Session()
        known.keep(session, num_rows)
        # Where the prompt is a token that nobody has read, this is a plain step as well, if a slow one.
        session.add(0, rounds.seconds_of_next(0))
        left = budget.left(known[self.num_rows, 0].plain_step)
        if known.next_to_time(num_rows, left - 1) is not None:
            session.add(0, rounds.seconds_of_next(0))
        for _ in range(MAX_STEPS):
            wanted = known.next_to_time(num_rows, budget.left(known[self.num_rows, 0].plain_step))
            if wanted is None:
                break
            num_levels, length = wanted
            levels = num_levels if options.source.timed_trees else None  # which is not for the drafter to say
            session.add(length, rounds.seconds_of_next(length, levels), num_levels)
        rounds.close()
        known.settle(session, num_rows, budget.num_steps)

    def _steps_to_read(self) -> float:
        """Plain steps that target and draft are assumed to take for the whole prompt."""
        width = self.batch.prompt_width
        if not self.model.config.is_encoder_decoder and self.inputs_tensor is not None:
            width = max(width, self.inputs_tensor.shape[1])  # embeddings, perhaps
        return 2 + self._assumed_per_token(self.num_rows) + 2 * ASSUMED_VERIFICATION * width

    def _scratch(self, num_rows: int, kept: int) -> Batch:
        """The last `kept` columns of the prompts."""
        source = self.options.source
        lengths = [*source.timed_lengths, *(n for of_levels in source.timed_trees.values() for n in of_levels)]
        width = self._spare(kept) + max(self._with_room(lengths))
        if width > self._longest():
            raise _NoRoom
        left_out = self.batch.prompt_width - kept
        tokens = self.batch.tokens[:num_rows, left_out : self.batch.prompt_width]
        padding = [max(0, pad - left_out) for pad in self.batch.host_padding[:num_rows]]
        history = [row[-kept:] for row in self.batch.history[:num_rows]]
        return Batch(tokens, padding, width, history)

    def _longest(self) -> int:
        """The longest text that the models take."""
        models = [model for model in (self.model, self.options.source.draft_model) if model is not None]
        return min(limit for model in models if (limit := max_positions_of(model) or 2**30))

    def _spare(self, kept: int) -> int:
        """Columns beside a draft at the end: the `kept` ones, and a token a round, those included that compile and read."""
        return kept + 2 + len(self.options.source.timed_lengths) + MAX_STEPS


class _NoRoom(Exception):
    """The models' context is too short to measure in."""
