"""What rounds cost on this machine: measured once for a pair of models, before the first round, then kept.

Wall time differs from run to run, and draft lengths that followed it would too: a seed would give other tokens each time. So
the costs of a pair are frozen in memory with the first call that asks for them. They are those of whole rounds of the loop
itself, on parts of their own and the last words of the call's prompts, with chance of their own: nothing that the call will
use is touched. No draft token is kept, so that each round of the measurement is like the next.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LogitsProcessorList, PreTrainedModel

from .agreement import Alone, ranks_of
from .assembly import default_rule, make_sampler, target_and_drafter
from .configuration import Options
from .lookahead import Costs
from .loop import speculate
from .models import CachedModel, Inputs, is_sharded, num_parameters
from .pairing import max_positions_of
from .processing import CONTEXT_FREE, Processors
from .sampling import Sampler
from .stopping import Stopping
from .types import Batch, Draft, Drafter, NoDistribution, Rule, Schedule, Verdict

#: draft lengths that are timed; what lies between them and beyond is interpolated
LENGTHS = (0, 1, 2, 4, 8)
#: all are timed until the two best times of each are as close as this, which on a quiet machine takes two repeats
MAX_REPEATS, CLOSE = 6, 1.1
#: tokens of the prompts that are read, and columns that the measurement may need beyond them
PROMPT_WIDTH, MAX_COLUMNS = 16, 2 + (1 + MAX_REPEATS) * len(LENGTHS) + max(LENGTHS)
#: verifying a draft token beside a plain step, where nothing can be measured
ASSUMED_VERIFICATION = 0.05

_known: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[object, dict[tuple, Costs]]] = WeakKeyDictionary()
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
        start, config = time.perf_counter(), self.options.config
        # Drafters of a user's are known by their class: a new object in each call shall not be measured each time.
        source = self.options.draft_model or (type(config.drafter) if config.drafter is not None else self.model)
        with _lock:
            known = _known.setdefault(self.model, WeakKeyDictionary()).setdefault(source, {})
            kind = self._kind()
            if kind not in known:
                known[kind] = self._measured()
                self.seconds = time.perf_counter() - start
            return known[kind]

    def _kind(self) -> tuple:
        """What the costs of a pair depend on."""
        options, config, model = self.options, self.inputs.generation_config, self.model
        drafts = (options.early_exit, options.use_mtp, options.prompt_lookup_num_tokens is None)
        law = (config.do_sample, options.config.reproducible, *(type(p) for p in self.processors))
        place = (len(self.batch.rows), model.dtype, model.device, options.config.compile, options.config.cuda_graphs)
        return (*drafts, options.config.vocabulary_mapping, *law, *self.inputs.others, *place)

    def _measured(self) -> Costs:
        # Ranks that wait for each other's forwards would measure each other's work.
        if self.options.synced_gpus or is_sharded(self.model) or is_sharded(self.options.draft_model):
            return self._assumed()
        num_rows, device = len(self.batch.rows), self.model.device
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                rounds = {num_rows: self._time(num_rows)}
                if num_rows > 1 and not self.keeps_rows_together:
                    rounds[1] = self._time(1)  # rows that are done leave: a batch ends with one
        except (torch.OutOfMemoryError, NoDistribution, _NoRoom):
            return self._assumed()
        return Costs(rounds)

    def _time(self, num_rows: int) -> dict[int, float]:
        """Seconds of rounds of `num_rows` rows, by draft length."""
        ranks = ranks_of(self.options, self.model)
        target, drafter = target_and_drafter(self.options, self.model, self.inputs, self.inputs_tensor)
        drafter = ranks.drafter(drafter)
        drafter.follow(target)
        self.keeps_rows_together = target.keeps_rows_together or drafter.keeps_rows_together
        batch = self._scratch(num_rows)
        generator = torch.Generator(batch.tokens.device).manual_seed(0)
        config = replace(self.options.config, generator=generator)
        processors = Processors(self.processors, num_rows)
        sampler = make_sampler(config, self.model, batch, processors, self.inputs.generation_config)
        drafter.begin(batch, sampler)
        warm_up = bool(config.compile or config.cuda_graphs)
        rule = ranks.rule(default_rule(sampler, drafter))
        return time_rounds(batch, target, drafter, rule, ranks.sampler(sampler), warm_up, ranks)

    def _scratch(self, num_rows: int) -> Batch:
        """The last words of the prompts; all of them where the parts were prepared for these very prompts."""
        models = [model for model in (self.model, self.options.draft_model) if model is not None]
        limit = min(limit for model in models if (limit := max_positions_of(model) or 2**30))
        width = self.batch.prompt_width
        kept = width if self.keeps_rows_together else min(PROMPT_WIDTH, width, max(1, limit - MAX_COLUMNS))
        if kept + MAX_COLUMNS > limit:
            raise _NoRoom
        tokens = self.batch.tokens[:num_rows, width - kept : width]
        padding = [max(0, pad - (width - kept)) for pad in self.batch.host_padding[:num_rows]]
        history = [row[-kept:] for row in self.batch.history[:num_rows]]
        return Batch(tokens, padding, kept + MAX_COLUMNS, history)

    def _assumed(self) -> Costs:
        """By the number of weights alone, which is what small batches are bound by."""
        draft, size = self.options.draft_model, num_parameters(self.model)
        share = 0.0 if draft is None or draft is self.model else num_parameters(draft) / size
        return Costs({1: {0: 1.0, 1: 1 + share + ASSUMED_VERIFICATION}})


class _NoRoom(Exception):
    """The models' context is too short to measure in."""


def time_rounds(
    batch: Batch,
    target: CachedModel,
    drafter: Drafter,
    rule: Rule,
    sampler: Sampler,
    warm_up: bool = False,
    ranks: Alone | None = None,
) -> dict[int, float]:
    """Seconds of a round by the number of tokens drafted, the best of some repeats: the loop itself is run on `batch`.

    `warm_up`: each kind of round is run once before; the first one compiles, say. `ranks`: those who run the model.
    """
    script = _Script()
    stopping = Stopping([], len(batch.rows))
    rounds = speculate(batch, target, _Filled(drafter), _KeepNothing(rule), script, sampler, stopping)
    on_gpu = batch.tokens.device.type == "cuda"

    def seconds_of_next(num_tokens: int) -> float:
        script.num_tokens = num_tokens
        start = time.perf_counter()
        next(rounds)
        if on_gpu:
            torch.cuda.synchronize(batch.tokens.device)
        seconds = time.perf_counter() - start
        return ranks.number(seconds) if ranks is not None else seconds  # clocks differ, and all have to repeat alike

    seconds_of_next(0)  # the prompt, read by the target
    seconds_of_next(1)  # and by the draft
    if warm_up:
        for n in LENGTHS:
            seconds_of_next(n)
    samples: dict[int, list[float]] = {n: [] for n in LENGTHS}
    for repeat in range(MAX_REPEATS):
        for n in LENGTHS:
            samples[n].append(seconds_of_next(n))
            if min(samples[n]) > (n + 1) * min(samples[0]):
                break  # not even a draft accepted whole would pay
        if repeat and all(_is_settled(times) for times in samples.values()):
            break
    rounds.close()
    # Drafting more cannot take less: what says so is noise.
    best = {n: min(times) for n, times in samples.items() if times}
    return {n: min(seconds for wider, seconds in best.items() if wider >= n) for n in best}


def _is_settled(times: list[float]) -> bool:
    fastest, *others = sorted(times) or [0.0, 0.0]
    return bool(others) and others[0] <= CLOSE * fastest


class _Script(Schedule):
    """As many tokens as it was told last."""

    num_tokens = 0

    def plan(self, batch: Batch) -> list[int]:
        return [self.num_tokens] * len(batch.rows)


class _Filled(Drafter):
    """A drafter's proposals, filled up to the length asked for: a lookup that finds nothing says nothing about costs."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        draft = self.drafter.propose(batch, num_tokens, schedule, sampler)
        missing = max(num_tokens) - draft.width
        if missing <= 0:
            return draft
        probs = draft.probs
        if probs is not None:
            probs = functional.pad(probs, (0, 0, 0, missing), value=1 / probs.shape[2])
        tokens = functional.pad(draft.tokens, (0, missing))
        return Draft(tokens, probs, torch.full_like(draft.num_tokens, tokens.shape[1]))

    def rollback(self, batch: Batch) -> None:
        self.drafter.rollback(batch)


class _KeepNothing(Rule):
    """Takes a rule's time and keeps none of the draft."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        return Verdict(torch.zeros_like(verdict.num_accepted), verdict.next_token, verdict.survival)
