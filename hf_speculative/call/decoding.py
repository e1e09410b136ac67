"""The decoding function that transformers' `generate` calls: it builds the parts, runs the loop and returns the output."""

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ..distributed.synced_gpus import in_step
from ..distributed.tensor_parallel import SingleProcess
from ..hf_compat import is_given_by_user
from ..interfaces import CachedModel, Drafter, Rule, Schedule, Stopping
from ..loop import speculate
from ..models import Inputs, note_decoded
from ..sampling.copying import CannotCopy
from ..sampling.logits_processors import Processors
from ..sampling.samplers import ProcessedSampler
from ..sampling.stopping import CriteriaStopping
from ..types import Batch, Round
from . import checks, input_checks
from .adapters import check_adapter_names
from .configuration import Options
from .learned import Learned
from .output import GenerateSpeculativeEncoderDecoderOutput, GenerateSpeculativeOutput, Output
from .parts import (
    drawn_from,
    kept_together,
    make_ranks,
    make_rule,
    make_sampler,
    make_schedule,
    may_branch,
    target_and_drafter,
    within_reach,
)
from .statistics import Statistics, Stopwatch, publish


class Declined(Exception):
    """A call that needs transformers' own steps; nothing has been run yet."""


class CannotRefill(Exception):
    """A part of the call keeps its rows together, so that they have to start together as well."""


@dataclass(frozen=True)
class Parts:
    """The parts of one call, before anything has been run.

    Attributes:
        inputs: the call, as the target's own `generate` prepared it.
        cache: the user's own `past_key_values`, if given.
        generator: of a sampled call, if it is known.
        learned: what earlier calls have learned.
        ranks: the process or group that decides, where several run the target together.
    """

    inputs: Inputs
    cache: Cache | None
    batch: Batch
    target: CachedModel
    drafter: Drafter
    sampler: ProcessedSampler
    rule: Rule
    schedule: Schedule
    stopping: Stopping
    generator: torch.Generator | None
    learned: Learned
    ranks: SingleProcess

    def begin(self) -> None:
        """Everything up to the first round; a cache that is given, and prompts that rows share, are read here."""
        self.drafter.may_branch = self.batch.branches
        self.drafter.follow(self.target)
        self.drafter.begin(self.batch, self.sampler)
        num_copies = self.inputs.generation_config.num_return_sequences or 1
        if self.cache is not None and self.cache.get_seq_length():
            self.target.load(self.cache, self.batch)
        elif num_copies > 1 and self.batch.prompt_width:
            _share_prefill(self.batch, num_copies, (self.target, self.drafter))

    def rounds(self, lap: Callable[[str], None]) -> Generator[Round, None, None]:
        """The loop itself, `lap` being told each stage that ends."""
        ranks, target, drafter = self.ranks, self.target, self.drafter
        return speculate(
            self.batch,
            target,
            drafter,
            ranks.rule(self.rule),
            kept_together(ranks.schedule(self.schedule), target, drafter),
            ranks.sampler(self.sampler),
            self.stopping,
            lap,
        )


class SpeculativeDecoding:
    """The decoding function that transformers' `generate` calls once all is prepared.

    Args:
        rows_go_on: beyond a stop of their own, where plain `generate` lets them; else each ends on its own.
        is_plain: the call asked for no draft. It is not counted, and `Declined` where transformers' own steps have to serve it.
    """

    def __init__(self, options: Options, rows_go_on: bool = False, is_plain: bool = False):
        self.options, self.rows_go_on, self.is_plain = options, rows_go_on, is_plain

    @torch.no_grad()
    def rounds(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None,
        **model_kwargs,
    ) -> Generator[tuple[Round, Statistics], None, Any]:
        """Generate one round at a time, with the counts so far.

        The generator's own result is what `generate` returns.
        """
        streamer = self.options["streamer"]
        inputs = Inputs(input_ids, generation_config, model_kwargs)
        with self._in_step(model, input_ids.device):
            try:
                parts = self._build(model, inputs, inputs_tensor, logits_processor, stopping_criteria)
            except (TypeError, ValueError) as error:
                # Processors that cannot be copied serve a batch as transformers calls them: all rows together.
                other_way = self.is_plain or (self.rows_go_on and isinstance(error, CannotCopy))
                if other_way and not self.options.is_bitwise:  # whose steps would be of another shape
                    raise Declined from error
                raise
            if streamer is not None:
                streamer.put(input_ids.cpu())
            output = Output(input_ids, generation_config, parts.target, parts.stopping, streamer)
            statistics = yield from self._run(parts, output)
            note_decoded((model, self.options.source.draft_model), sum(statistics.seconds.values()))
            if parts.sampler.processors.lookahead_unsupported_reason is None:  # else that was told
                checks.warn_of_no_draft(self.options.source, model, statistics)
            if streamer is not None:
                streamer.end()
            return self._finish(parts, output, statistics)

    @functools.wraps(rounds, assigned=())  # transformers reads which parameters there are
    def __call__(self, *args, **kwargs) -> Tensor | GenerateSpeculativeOutput | GenerateSpeculativeEncoderDecoderOutput:
        """All rounds at once."""
        rounds = self.rounds(*args, **kwargs)
        while True:
            try:
                next(rounds)
            except StopIteration as end:
                return end.value
            except RuntimeError as error:
                # What Python makes of a `StopIteration` of the user's on its way through a generator (PEP 479).
                if isinstance(error.__cause__, StopIteration) and str(error) == "generator raised StopIteration":
                    raise error.__cause__ from None
                raise

    def _in_step(self, model: PreTrainedModel, device: torch.device) -> AbstractContextManager:
        """Ranks keep step during a call; the calls of `generate_batches` have one `in_step` around all of them."""
        options = self.options
        if options.rows_at_once is not None:
            return nullcontext()
        return in_step(options["synced_gpus"], model, options.source.draft_model, device)

    def _build(
        self,
        model: PreTrainedModel,
        inputs: Inputs,
        inputs_tensor: Tensor | None,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
    ) -> Parts:
        """The call, checked, and the parts for it."""
        options, config = self.options, inputs.generation_config
        num_rows = inputs.input_ids.shape[0]
        keep_scores = bool(config.return_dict_in_generate and config.output_scores)
        is_one_of_many = options.rows_at_once is not None
        stopping = CriteriaStopping(
            stopping_criteria, num_rows, keep_scores, only_copies=is_one_of_many, rows_go_on=self.rows_go_on
        )
        processors = Processors(logits_processor, num_rows)
        cache = self._check(model, inputs, stopping)

        ranks = make_ranks(options, model)
        target, drafter = target_and_drafter(options, model, inputs, inputs_tensor)
        checks.check_sample_method(options, config, drafter)
        drafter = ranks.drafter(drafter)
        assert stopping.max_length is not None  # transformers' generate always sets one
        batch = Batch(inputs.input_ids, inputs.prompt.padding, stopping.max_length, inputs.prompt.history)
        batch.ends = frozenset(stopping.eos)
        batch.guide_of = processors.guides(batch.history)  # type: ignore[assignment, method-assign]
        sampler = make_sampler(options.config, model, batch, processors, config)
        self._let_rows_wait(batch, target, drafter, sampler)
        rule = make_rule(options.config, sampler, drafter)
        sampler.keeps_draft_probs = rule.reads_draft_probs
        batch.branches = may_branch(drafter, model, target, sampler, ranks.rule(rule))
        learned = Learned(options, model, inputs, logits_processor)
        schedule = learned.timed(within_reach(make_schedule(options), processors))
        return Parts(
            inputs=inputs,
            cache=cache,
            batch=batch,
            target=target,
            drafter=drafter,
            sampler=sampler,
            rule=rule,
            schedule=schedule,
            stopping=ranks.stopping(stopping),
            generator=drawn_from(options.config, inputs.input_ids.device) if config.do_sample else None,
            learned=learned,
            ranks=ranks,
        )

    def _check(self, model: PreTrainedModel, inputs: Inputs, stopping: CriteriaStopping) -> Cache | None:
        """Check the call before its parts are made; returns the user's own cache, if there is one."""
        checks.check_generation(
            self.options, model, inputs.input_ids, inputs.generation_config, stopping.rows_may_differ
        )
        check_adapter_names(model, inputs.input_ids.shape[0])
        cache = inputs.cache if is_given_by_user(inputs.cache) else None
        if cache is not None:
            input_checks.check_cache(cache, inputs, self.options.source)
        input_checks.check_prompt(model, inputs)
        return cache

    def _let_rows_wait(self, batch: Batch, target: CachedModel, drafter: Drafter, sampler: ProcessedSampler) -> None:
        limit = self.options.rows_at_once
        if limit is None or limit >= len(batch.rows):
            return
        parts = (target, drafter, sampler.processors)
        if any(part.keeps_rows_together for part in parts):
            raise CannotRefill
        batch.shares_prefixes = target.shares_prefixes
        batch.wait_beyond(limit)

    def _run(self, parts: Parts, output: Output) -> Generator[tuple[Round, Statistics], None, Statistics]:
        """Run all rounds, and publish the counts even if an error ends them."""
        drafter, statistics = parts.drafter, Statistics(num_calls=1)
        parts.ranks.begin(parts.generator)
        parts.schedule.begin(parts.batch, parts.learned.costs)
        parts.learned.start(parts.schedule)
        stopwatch, num_forwards_before = Stopwatch(parts.batch.tokens.device), drafter.num_forwards
        parts.begin()
        rounds = parts.rounds(stopwatch.lap)
        try:
            for round in rounds:
                statistics.follow(round)
                output.follow(round)
                for row in [row for row, is_done in zip(round.rows, round.done, strict=True) if is_done]:
                    drafter.learn(parts.inputs.prompt.history[row], output.new_tokens[row])
                yield round, statistics
        finally:
            rounds.close()
            end = parts.stopping.end
            parts.sampler.finish(None if end is None else end - parts.batch.prompt_width)
            parts.learned.keep(parts.schedule)
            statistics.num_target_forwards = parts.target.num_forwards
            statistics.num_draft_forwards = drafter.num_forwards - num_forwards_before
            statistics.seconds = stopwatch.seconds()
            if not statistics.num_draft_tokens:
                statistics.reason = parts.schedule.reason
            if not self.is_plain:
                publish(statistics)
        parts.ranks.end()
        return statistics

    @staticmethod
    def _finish(parts: Parts, output: Output, statistics: Statistics):
        """Make the output of `generate`, update the user's cache, and release memory."""
        inputs, as_dict = parts.inputs, bool(parts.inputs.generation_config.return_dict_in_generate)
        sequences, stored = output.sequences(), None
        if as_dict or parts.cache is not None:
            stored = parts.target.store(parts.cache, sequences, inputs.prompt.padding, output.lengths)
        parts.target.release()
        parts.drafter.release()
        return output.as_dict(inputs, stored, statistics) if as_dict else sequences


def _share_prefill(batch: Batch, num_copies: int, parts) -> None:
    """`num_return_sequences`: read each prompt once, then copy its cache."""
    prompts = batch.part(range(0, len(batch.rows), num_copies))
    prompts.rows = list(range(len(prompts.rows)))
    copies = [row for row in prompts.rows for _ in range(num_copies)]
    for part in parts:
        if not part.keeps_rows_together:  # transformers' own cache is filled as plain `generate` fills it
            part.prefill(prompts)
            part.select(copies)
