"""What transformers' `generate` hands over to: it puts the parts together, runs the loop and returns what was asked for."""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ..distributed.synced_gpus import in_step
from ..interfaces import CachedModel, Drafter
from ..loop import speculate
from ..models import Inputs
from ..sampling.logits_processors import Processors
from ..sampling.samplers import ProcessedSampler
from ..sampling.stopping import CriteriaStopping
from ..types import Batch, Round
from . import checks, input_checks
from .adapters import check_adapter_names
from .configuration import Options
from .measured_costs import Probe
from .output import Output
from .parts import (
    drawn_from,
    kept_together,
    make_ranks,
    make_rule,
    make_sampler,
    make_schedule,
    target_and_drafter,
    within_reach,
)
from .self_drafting import check_hidden_states_known
from .statistics import Statistics, Stopwatch, publish


class Speculation:
    """What an output tells beside transformers' own fields, as attributes only: pipelines and Whisper pass every field on.

    Attributes:
        from_draft: `(batch, new)` bool, which of the new tokens the draft had guessed.
        survival: `(batch, new)` float, with what chance, given the draft, such a token was kept along with the draft tokens
            before it; nan for the target's own tokens and after the end of a row.
        statistics: those of the call.
    """

    from_draft: Tensor | None = None
    survival: Tensor | None = None
    statistics: Statistics | None = None


class GenerateSpeculativeOutput(GenerateDecoderOnlyOutput, Speculation):
    """transformers' `GenerateDecoderOnlyOutput`, with `from_draft`, `survival` and `statistics` as attributes.

    `scores` and `logits` have one `(batch, vocab)` entry a step, as in plain `generate`; a row that is done is 0 there.
    `past_key_values` has read all columns of `sequences` but the last, as in plain `generate`, the pad tokens after the end of
    a row included: pass it with a longer text, and its mask, to go on.
    """


class GenerateSpeculativeEncoderDecoderOutput(GenerateEncoderDecoderOutput, Speculation):
    """The same for an encoder-decoder model."""


class CannotRefill(Exception):
    """A part of the call keeps its rows together, so that they have to start together, too."""


def _kept_in_step(rounds):
    """Ranks keep step during a call; the calls of `generate_batches` have one `in_step` around all of them."""

    @functools.wraps(rounds)
    def stepping(self, model: PreTrainedModel, input_ids: Tensor, *args, **kwargs):
        options = self.options
        steps: AbstractContextManager = nullcontext()
        if options.rows_at_once is None:
            steps = in_step(options.synced_gpus, model, options.draft_model, input_ids.device)
        with steps:
            return (yield from rounds(self, model, input_ids, *args, **kwargs))

    return stepping


class SpeculativeDecoding:
    """What transformers' `generate` hands over to once all is prepared."""

    def __init__(self, options: Options):
        self.options = options

    @torch.no_grad()
    @_kept_in_step
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
        """Generate a round at a time, each when it is asked for, with the counts so far.

        The generator's own result is what `generate` returns.
        """
        streamer = self.options.streamer
        as_dict = bool(generation_config.return_dict_in_generate)
        keep_scores = as_dict and bool(generation_config.output_scores)
        is_one_of_many = self.options.rows_at_once is not None
        stopping = CriteriaStopping(stopping_criteria, input_ids.shape[0], keep_scores, only_copies=is_one_of_many)
        processors = Processors(logits_processor, input_ids.shape[0])
        checks.check_generation(self.options, model, input_ids, generation_config, stopping.rows_may_differ)
        check_adapter_names(model, input_ids.shape[0])
        inputs = Inputs(input_ids, generation_config, model_kwargs)
        cache = model_kwargs.get(inputs.cache_name)
        cache = cache if getattr(cache, "_is_user_defined", False) else None
        if cache is not None:
            input_checks.check_cache(cache, input_ids, generation_config, inputs.attention_mask)
        input_checks.check_prompt(model, inputs)
        prompt = inputs.prompt
        ranks = make_ranks(self.options, model)
        target, drafter = target_and_drafter(self.options, model, inputs, inputs_tensor)
        drafter = ranks.drafter(drafter)
        check_hidden_states_known(cache, drafter)
        if streamer is not None:
            streamer.put(input_ids.cpu())

        assert stopping.max_length is not None  # transformers' generate always sets one
        batch = Batch(input_ids, prompt.padding, stopping.max_length, prompt.history)
        sampler = make_sampler(self.options.config, model, batch, processors, generation_config)
        ranks.begin(drawn_from(self.options.config, input_ids.device) if generation_config.do_sample else None)
        self._let_rows_wait(batch, target, drafter, sampler)
        schedule = within_reach(make_schedule(self.options), processors)
        probe = Probe(self.options, model, inputs, inputs_tensor, batch, logits_processor)
        schedule.begin(batch, probe)
        stopwatch = Stopwatch(input_ids.device)
        rule = make_rule(self.options.config, sampler, drafter)
        sampler.keeps_draft_probs = rule.reads_draft_probs
        num_forwards_before = drafter.num_forwards
        drafter.follow(target)
        drafter.begin(batch, sampler)
        if cache is not None and cache.get_seq_length():
            target.load(cache, batch)
        elif (num_copies := generation_config.num_return_sequences or 1) > 1 and batch.prompt_width:
            _share_prefill(batch, num_copies, (target, drafter))

        output, statistics = Output(input_ids, generation_config, target, streamer), Statistics(num_calls=1)
        rounds = speculate(
            batch,
            target,
            drafter,
            ranks.rule(rule),
            kept_together(ranks.schedule(schedule), target, drafter),
            ranks.sampler(sampler),
            ranks.stopping(stopping),
            stopwatch.lap,
        )
        try:
            for round in rounds:
                statistics.follow(round)
                output.follow(round)
                yield round, statistics
        finally:
            rounds.close()
            sampler.finish()
            statistics.num_target_forwards = target.num_forwards
            statistics.num_draft_forwards = drafter.num_forwards - num_forwards_before
            statistics.seconds = stopwatch.seconds() | {"probe": probe.seconds}
            publish(statistics)
        ranks.end()
        if streamer is not None:
            streamer.end()
        sequences = output.sequences()
        stored = (
            target.store(cache, sequences, prompt.padding, output.lengths) if as_dict or cache is not None else None
        )
        for part in (target, drafter):
            part.release()
        if not as_dict:
            return sequences
        result = self._as_dict(model, inputs, output, stored)
        result.survival, result.statistics = output.survival_matrix(), statistics
        result.from_draft = ~result.survival.isnan()
        return result

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

    def _let_rows_wait(self, batch: Batch, target: CachedModel, drafter: Drafter, sampler: ProcessedSampler) -> None:
        limit = self.options.rows_at_once
        if limit is None or limit >= len(batch.rows):
            return
        parts = (target, drafter, sampler.processors)
        if any(part.keeps_rows_together for part in parts):
            raise CannotRefill
        batch.wait_beyond(limit)

    @staticmethod
    def _as_dict(
        model: PreTrainedModel, inputs: Inputs, output: Output, stored
    ) -> GenerateSpeculativeOutput | GenerateSpeculativeEncoderDecoderOutput:
        common: dict[str, Any] = {
            "sequences": output.sequences(),
            "scores": output.steps("scores"),
            "logits": output.steps("logits"),
            "past_key_values": stored,
        }
        if not model.config.is_encoder_decoder:
            layers = {name: output.layers(name) for name in ("hidden_states", "attentions")}
            return GenerateSpeculativeOutput(**common, **layers)
        layers = {
            name: output.layers(name) for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions")
        }
        encoder = inputs.model_kwargs["encoder_outputs"]
        encoded = {
            f"encoder_{name}": encoder.get(name) if getattr(inputs.generation_config, f"output_{name}") else None
            for name in ("hidden_states", "attentions")
        }
        return GenerateSpeculativeEncoderDecoderOutput(**common, **layers, **encoded)


def _share_prefill(batch: Batch, num_copies: int, parts) -> None:
    """`num_return_sequences`: read each prompt once, then copy its cache."""
    prompts = batch.part(range(0, len(batch.rows), num_copies))
    prompts.rows = list(range(len(prompts.rows)))
    copies = [row for row in prompts.rows for _ in range(num_copies)]
    for part in parts:
        if not part.keeps_rows_together:  # transformers' own cache is filled as plain `generate` fills it
            part.prefill(prompts)
            part.select(copies)
