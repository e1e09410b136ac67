"""The decoding function that transformers' `generate` calls: it builds the parts, runs the loop and returns the output."""

import functools
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ..distributed.synced_gpus import in_step, models_in_step
from ..distributed.tensor_parallel import SingleProcess, ranks_of
from ..hf_compat import is_given_by_user
from ..loop import speculate
from ..models import Inputs
from ..models.execution import note_decoded
from ..sampling.copying import CannotCopy
from ..sampling.logits_processors import Processors
from ..sampling.stopping import CriteriaStopping
from ..schedules import AlignRows
from ..types import Batch, Round
from . import checks, input_checks
from .adapters import check_adapter_names
from .configuration import Options
from .learned import Learned
from .output import GenerateSpeculativeEncoderDecoderOutput, GenerateSpeculativeOutput, Output
from .parts import drawn_from, make_rule, make_sampler, make_schedule, may_branch, target_and_drafter, within_reach
from .statistics import Statistics, Stopwatch, publish


class Declined(Exception):
    """A call that needs transformers' own steps; nothing has been run yet."""


class CannotRefill(Exception):
    """A part of the call keeps its rows together, so that they have to start together as well."""


class Parts:
    """The parts of one call, checked, before anything has been run.

    Attributes:
        inputs: the call, as the target's own `generate` prepared it.
        cache: the user's own `past_key_values`, if given.
        generator: of a sampled call, if it is known.
        learned: what earlier calls have learned.
        ranks: the process or group that decides, where several run the target together.
    """

    def __init__(
        self,
        options: Options,
        model: PreTrainedModel,
        inputs: Inputs,
        inputs_tensor: Tensor | None,
        logits_processor: LogitsProcessorList,
        stopping: CriteriaStopping,
        is_plain: bool,
    ):
        own, config, source = options.config, inputs.generation_config, options.source
        processors = Processors(logits_processor, inputs.input_ids.shape[0], stopping.others)
        if is_plain and processors.memories.lookahead_unsupported_reason is not None:
            raise processors.memories.lookahead_unsupported_reason
        checks.check_generation(options, model, inputs.input_ids, config, stopping.rows_may_differ)
        check_adapter_names(model, inputs.input_ids.shape[0])
        self.inputs, self.cache = inputs, inputs.cache if is_given_by_user(inputs.cache) else None
        if self.cache is not None:
            input_checks.check_cache(self.cache, inputs, source)
        input_checks.check_prompt(model, inputs)

        self.ranks = ranks = ranks_of(model, source.draft_model, source.reads_target)
        self.target, drafter = target_and_drafter(options, model, inputs, inputs_tensor)
        checks.check_sample_method(options, config, drafter)
        self.drafter = ranks.drafter(drafter)
        assert stopping.max_length is not None  # transformers' generate always sets one
        max_length = max(stopping.max_length, inputs.input_ids.shape[1] + 1)  # the user's own may be shorter than the prompt
        self.batch = batch = Batch(inputs.input_ids, inputs.prompt.padding, max_length, inputs.prompt.history)
        batch.ends = frozenset(stopping.eos)
        batch.guide_of = processors.guides(batch.history)  # type: ignore[assignment, method-assign]
        self.sampler = make_sampler(own, model, batch, processors, config)
        self.learned = Learned(options, model, inputs, logits_processor)
        if options.rows_at_once is not None:
            self._let_rows_wait(options.rows_at_once)
        self.rule = make_rule(own, self.sampler, self.drafter)
        self.sampler.keeps_draft_probs = self.rule.reads_draft_probs
        # Which tokens are few depends on the other rows, and sums of their probabilities are rounded accordingly.
        self.sampler.narrows = self.rule.takes_few and not options.is_bitwise
        batch.branches = may_branch(self.drafter, model, self.target, self.sampler, ranks.rule(self.rule))
        self.schedule = self.learned.timed(within_reach(make_schedule(options), processors))
        self.stopping = ranks.stopping(stopping)
        self.generator = drawn_from(own, inputs.input_ids.device) if config.do_sample else None

    def _let_rows_wait(self, num_rows: int) -> None:
        """Only `num_rows` rows run at a time."""
        if num_rows >= len(self.batch.rows):
            return
        if any(part.keeps_rows_together for part in (self.target, self.drafter, self.sampler.processors)):
            raise CannotRefill
        self.batch.shares_prefixes = self.target.shares_prefixes
        order = list(range(len(self.batch.rows)))
        # A user's processor shows the memory of the first row, and ranks have to agree.
        if num_rows > 1 and not self.sampler.processors.have_memory and type(self.ranks) is SingleProcess:
            order = self.learned.longest_first(self.batch.history)
        self.batch.wait_beyond(num_rows, order)

    def begin(self) -> None:
        """Everything up to the first round; a cache that is given, and prompts that rows share, are read here."""
        self.ranks.begin(self.generator)
        self.schedule.begin(self.batch, self.learned.costs)
        self.learned.start(self.schedule)
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
        schedule = self.ranks.schedule(self.schedule)
        if self.target.keeps_rows_together or self.drafter.keeps_rows_together:
            schedule = AlignRows(schedule)
        rule, sampler = self.ranks.rule(self.rule), self.ranks.sampler(self.sampler)
        return speculate(self.batch, self.target, self.drafter, rule, schedule, sampler, self.stopping, lap)


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
        options, streamer = self.options, self.options["streamer"]
        inputs = Inputs(input_ids, generation_config, model_kwargs, not model.config.is_encoder_decoder)
        has_scores = bool(generation_config.return_dict_in_generate and generation_config.output_scores)
        only_copies = options.rows_at_once is not None  # a call of `generate_batches`, with one `in_step` around all
        models = (model, options.source.draft_model)
        with nullcontext() if only_copies else in_step(models_in_step(options["synced_gpus"], *models), input_ids.device):
            try:
                stopping = CriteriaStopping(stopping_criteria, len(input_ids), has_scores, only_copies, self.rows_go_on)
                parts = Parts(options, model, inputs, inputs_tensor, logits_processor, stopping, self.is_plain)
            except (TypeError, ValueError) as error:
                # Processors that cannot be copied serve a batch as transformers calls them: all rows together.
                has_generator = generation_config.do_sample and options.config.generator is not None
                other_way = self.is_plain or (self.rows_go_on and isinstance(error, CannotCopy) and not has_generator)
                if other_way and not options.is_bitwise:  # whose steps would be of another shape
                    raise Declined from error
                raise
            if streamer is not None:
                streamer.put(input_ids.cpu())
            output = Output(input_ids, generation_config, parts.target, parts.stopping, streamer)
            statistics = yield from self._run(parts, output)
            note_decoded(models, sum(statistics.seconds.values()))
            if parts.sampler.processors.memories.lookahead_unsupported_reason is None:  # else that was told
                checks.warn_of_no_draft(options.source, model, statistics)
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

    def _run(self, parts: Parts, output: Output) -> Generator[tuple[Round, Statistics], None, Statistics]:
        """Run all rounds, and publish the counts even if an error ends them."""
        drafter, statistics = parts.drafter, Statistics(num_calls=1)
        stopwatch, num_forwards_before = Stopwatch(parts.batch.tokens.device), drafter.num_forwards
        prompts = parts.inputs.prompt.history
        parts.begin()
        rounds = parts.rounds(stopwatch.lap)
        try:
            for round in rounds:
                statistics.follow(round)
                output.follow(round)
                for row, is_done in zip(round.rows, round.done, strict=True):
                    if is_done:
                        drafter.learn(prompts[row], output.new_tokens[row])
                        parts.learned.note_answer(prompts[row], len(output.new_tokens[row]))
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
