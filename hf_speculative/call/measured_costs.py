"""What rounds cost on this machine: measured in a bounded time before a call's first round, and kept for later calls.

Measuring takes no longer than a few plain steps, nor than a small share of what the call is going to take. So a round of it is
begun only where it is expected to fit, the most telling first. What was not reached is assumed, and later calls go on from
there until times agree; within a call the costs do not change.

What is timed are whole rounds of the loop itself, on parts of their own and the last token of each prompt, with chance of their
own: nothing that the call will use is touched. No draft token is kept, so that each round is like the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LogitsProcessorList, PreTrainedModel

from ..drafting.wrapped import WrappedDrafter
from ..interfaces import CachedModel, Drafter, Rule, Sampler, Schedule
from ..loop import speculate
from ..models import Inputs, is_sharded, max_positions_of
from ..sampling.logits_processors import CONTEXT_FREE, Processors
from ..sampling.stopping import CriteriaStopping
from ..types import Batch, Costs, Draft, NoDistribution, Verdict
from .configuration import Options
from .parts import default_rule, make_ranks, make_sampler, may_branch, target_and_drafter
from .timings import Budget, Timings

#: measuring takes no longer than so many plain steps, nor than this share of the plain steps that a call asks for
MAX_STEPS, MAX_SHARE = 8, 0.1
#: verifying a draft token beside a plain step, where nothing was measured
ASSUMED_VERIFICATION = 0.05

_known: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[object, dict[tuple, dict[int, Timings]]]]
_known = WeakKeyDictionary()
_lock = threading.RLock()  # a drafter of a user's may well call `generate` itself


class Probe:
    """The costs of a call's rounds, known or to be measured: what `Schedule.begin` is given.

    Args:
        batch: the call's prompts, nothing generated yet. The others as in `target_and_drafter`.

    Attributes:
        seconds: what measuring took; 0 where nothing was measured.
    """

    seconds: float = 0.0

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
        self.batch = batch
        self.processors = LogitsProcessorList(p for p in processors if type(p) in CONTEXT_FREE)

    def __call__(self) -> Costs:
        source = self.options.source
        with _lock:
            of_target = _known.setdefault(self.model, WeakKeyDictionary())
            kinds, kind = of_target.setdefault(source.costs_end_with(self.model), {}), self._kind()
            if kind not in kinds:
                kinds[kind] = {len(self.batch.rows): self._timings()}
            known = kinds[kind]
            # Ranks that wait for each other's forwards would measure each other's work.
            if not (self.options["synced_gpus"] or is_sharded(self.model) or is_sharded(source.draft_model)):
                self._measure(known)
            measured = {num_rows: timings.best() for num_rows, timings in known.items() if timings.are_measured}
            return Costs(measured or {num_rows: timings.best() for num_rows, timings in known.items()})

    def _kind(self) -> tuple:
        """What the costs of a pair depend on."""
        options, config, model = self.options, self.inputs.generation_config, self.model
        sampling = (config.do_sample, options.config.reproducible, *(type(p) for p in self.processors))
        place = (len(self.batch.rows), model.dtype, model.device, options.config.compile, options.config.cuda_graphs)
        return (options.source.cost_key, *sampling, *self.inputs.others, *place)

    def _timings(self) -> Timings:
        return Timings(self._assumed_per_token(), self.options.source.timed_lengths)

    def _assumed_per_token(self) -> float:
        return self.options.source.cost_of_token(self.model) + ASSUMED_VERIFICATION

    def _measure(self, known: dict[int, Timings]) -> None:
        """Lengthens `known`, by batch size: the call's and, as rows that are done leave, one row."""
        num_steps = min(MAX_STEPS, MAX_SHARE * (self.batch.max_length - self.batch.prompt_width))
        if all(timings.wanted(num_steps - 1) is None for timings in known.values()):
            return  # beside the step that the prompt takes there is time for nothing, or all is known
        device, start = self.model.device, time.perf_counter()
        budget = Budget(num_steps, make_ranks(self.options, self.model))
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for num_rows in sorted(known, key=lambda size: known[size].are_measured):
                    if known[num_rows].wanted(budget.left(known[len(self.batch.rows)].plain_step) - 1) is not None:
                        self._time(num_rows, known, budget)
        except (torch.OutOfMemoryError, NoDistribution, _NoRoom):
            for timings in known.values():
                timings.can_grow = False  # nor in a later call
        self.seconds = time.perf_counter() - start

    def _time(self, num_rows: int, known: dict[int, Timings], budget: Budget) -> None:
        """Times rounds of `num_rows` rows, as long as the budget lasts."""
        options, ranks = self.options, budget.ranks
        target, drafter = target_and_drafter(options, self.model, self.inputs, self.inputs_tensor)
        drafter = ranks.drafter(drafter)
        drafter.follow(target)
        # Parts that keep their rows together were prepared for these very prompts: they read them whole, which may take long.
        is_whole = target.keeps_rows_together or drafter.keeps_rows_together
        if not is_whole:
            known.setdefault(1, self._timings())
        elif known[num_rows].wanted(budget.num_steps - self._steps_to_read()) is None:
            return
        batch = self._scratch(num_rows, self.batch.prompt_width if is_whole else min(1, self.batch.prompt_width))
        generator = torch.Generator(batch.tokens.device).manual_seed(0)
        config = replace(options.config, generator=generator)
        processors = Processors(self.processors, num_rows)
        sampler = make_sampler(config, self.model, batch, processors, self.inputs.generation_config)
        rule = ranks.rule(default_rule(sampler, drafter))
        drafter.may_branch = may_branch(drafter, self.model, target, sampler, rule)
        drafter.begin(batch, sampler)
        rounds = TimedRounds(batch, target, drafter, rule, ranks.sampler(sampler), budget)
        if options.config.compile is True or options.config.cuda_graphs:
            rounds.compile(options.source.timed_lengths)
        elif is_whole:  # by the target, and by the draft
            rounds.seconds_of_next(0)
            rounds.seconds_of_next(1)
        # Where the prompt is a token that nobody has read, this is a plain step as well.
        known[num_rows].samples[0].append(rounds.seconds_of_next(0))
        for _ in range(MAX_STEPS):
            length = known[num_rows].wanted(budget.left(known[len(self.batch.rows)].plain_step))
            if length is None:
                break
            known[num_rows].samples[length].append(rounds.seconds_of_next(length))
        rounds.close()

    def _steps_to_read(self) -> float:
        """Plain steps that target and draft are assumed to take for the whole prompt."""
        width = self.batch.prompt_width
        if not self.model.config.is_encoder_decoder and self.inputs_tensor is not None:
            width = max(width, self.inputs_tensor.shape[1])  # embeddings, perhaps
        return 2 + self._assumed_per_token() + 2 * ASSUMED_VERIFICATION * width

    def _scratch(self, num_rows: int, kept: int) -> Batch:
        """The last `kept` columns of the prompts."""
        models = [model for model in (self.model, self.options.source.draft_model) if model is not None]
        lengths = self.options.source.timed_lengths
        # A token a round, those included that compile and read, and a draft at the end.
        width = kept + 2 + len(lengths) + MAX_STEPS + max(lengths)
        if width > min(limit for model in models if (limit := max_positions_of(model) or 2**30)):
            raise _NoRoom
        left_out = self.batch.prompt_width - kept
        tokens = self.batch.tokens[:num_rows, left_out : self.batch.prompt_width]
        padding = [max(0, pad - left_out) for pad in self.batch.host_padding[:num_rows]]
        history = [row[-kept:] for row in self.batch.history[:num_rows]]
        return Batch(tokens, padding, width, history)


class _NoRoom(Exception):
    """The models' context is too short to measure in."""


class TimedRounds:
    """The loop itself, run on `batch` a round at a time, on the time of `budget`."""

    def __init__(
        self, batch: Batch, target: CachedModel, drafter: Drafter, rule: Rule, sampler: Sampler, budget: Budget
    ):
        self.script, self.budget, self.device = _Script(), budget, batch.tokens.device
        stopping = CriteriaStopping([], len(batch.rows))
        self.rounds = speculate(batch, target, _Filled(drafter), _KeepNothing(rule), self.script, sampler, stopping)
        self.close = self.rounds.close
        budget.lap()

    def seconds_of_next(self, num_tokens: int, is_spent: bool = True) -> float:
        """What a round takes that drafts `num_tokens` a row."""
        self.script.num_tokens = num_tokens
        next(self.rounds)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.budget.lap(is_spent)

    def compile(self, lengths: Sequence[int]) -> None:
        """Each kind of round once: whoever asks for compiled passes asks for that time, now or in the call."""
        for n in (0, *lengths):
            self.seconds_of_next(n, is_spent=False)


class _Script(Schedule):
    """As many tokens as it was told last."""

    num_tokens = 0

    def plan(self, batch: Batch) -> list[int]:
        return [self.num_tokens] * len(batch.rows)


class _Filled(WrappedDrafter):
    """A drafter's proposals, filled up to the length asked for: a lookup that finds nothing says nothing about costs."""

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        draft = self.drafter.propose(batch, num_tokens, schedule, sampler)
        missing = max(num_tokens) - draft.width
        if missing <= 0:
            return draft
        probs = draft.probs
        if probs is not None:
            probs = functional.pad(probs, (0, 0, 0, missing), value=1 / probs.shape[2])
        parents = draft.parents
        if self.drafter.may_branch:
            known = torch.arange(-1, draft.width - 1, device=draft.tokens.device).expand_as(draft.tokens)
            parents = functional.pad(known if parents is None else parents, (0, missing), value=-1)
        tokens = functional.pad(draft.tokens, (0, missing))
        return Draft(tokens, probs, torch.full_like(draft.num_tokens, tokens.shape[1]), parents, draft.depth)


class _KeepNothing(Rule):
    """Takes a rule's time and keeps none of the draft."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        return Verdict(torch.zeros_like(verdict.num_accepted), verdict.next_token, verdict.survival)
