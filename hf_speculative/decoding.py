"""What transformers' `generate` hands over to: it puts the parts together, runs the loop and returns what was asked for."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from . import checks
from .adapters import check_adapter_names
from .agreement import ranks_of
from .assembly import default_rule, kept_together, make_sampler, make_schedule, target_and_drafter, within_reach
from .batch import Batch, padding_of
from .configuration import Options
from .costs import Probe
from .loop import speculate
from .models import CachedModel, Inputs
from .output import Output
from .processing import Processors
from .sampling import Sampler
from .self_drafting import check_hidden_states_known
from .statistics import Statistics, Stopwatch, publish
from .stopping import Stopping
from .turnstile import kept_in_step
from .types import Drafter, Round


@dataclass
class GenerateSpeculativeOutput(GenerateDecoderOnlyOutput):
    """transformers' `GenerateDecoderOnlyOutput` with the statistics of the call.

    `scores` and `logits` have one `(batch, vocab)` entry a step, as in plain `generate`; a row that is done is 0 there.
    `past_key_values` is filled for a batch of one; for larger ones where a cache was passed in or the universal path is
    taken, else it is `None`. `from_draft (batch, new)` says which of the new tokens the draft had guessed, and
    `survival (batch, new)` with what chance, given the draft, it was kept along with the draft tokens before it; nan elsewhere.
    """

    from_draft: Tensor | None = None
    survival: Tensor | None = None
    statistics = cast("Statistics | None", None)  # no field: Whisper splits every field by rows


@dataclass
class GenerateSpeculativeEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """The same for an encoder-decoder model."""

    from_draft: Tensor | None = None
    survival: Tensor | None = None
    statistics = cast("Statistics | None", None)


class CannotRefill(Exception):
    """A part of the call keeps its rows together, so that they have to start together, too."""


class SpeculativeDecoding:
    """What transformers' `generate` hands over to once all is prepared."""

    def __init__(self, options: Options):
        self.options = options

    @torch.no_grad()
    @kept_in_step
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
        stopping = Stopping(stopping_criteria, input_ids.shape[0], keep_scores, only_copies=is_one_of_many)
        processors = Processors(logits_processor, input_ids.shape[0])
        checks.check_generation(self.options, model, input_ids, generation_config, stopping.rows_may_differ)
        check_adapter_names(model, input_ids.shape[0])
        inputs = Inputs(input_ids, generation_config, model_kwargs)
        cache = model_kwargs.get(inputs.cache_name)
        cache = cache if getattr(cache, "_is_user_defined", False) else None
        padding = self._padding(model, inputs, cache)
        ranks = ranks_of(self.options, model)
        target, drafter = target_and_drafter(self.options, model, inputs, inputs_tensor)
        drafter = ranks.drafter(drafter)
        check_hidden_states_known(cache, drafter)
        if streamer is not None:
            streamer.put(input_ids.cpu())

        assert stopping.max_length is not None  # transformers' generate always sets one
        batch = Batch(input_ids, padding, stopping.max_length)
        sampler = make_sampler(self.options.config, model, batch, processors, generation_config)
        ranks.begin(bool(generation_config.do_sample), self.options.config.generator)
        self._let_rows_wait(batch, target, drafter, sampler)
        schedule = within_reach(make_schedule(self.options), processors)
        probe = Probe(self.options, model, inputs, inputs_tensor, batch, logits_processor)
        schedule.begin(batch, probe)
        stopwatch = Stopwatch(input_ids.device)
        rule = self.options.config.rule or default_rule(sampler, drafter)
        sampler.keeps_laws = rule.reads_draft_probs
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
            stopwatch.watch("verify", target, "logits", "admit"),
            stopwatch.watch("draft", drafter, "propose", "rollback", "admit"),
            stopwatch.watch("accept", ranks.rule(rule), "__call__"),
            kept_together(ranks.schedule(schedule), target, drafter),
            stopwatch.watch("verify", ranks.sampler(sampler), "target_scores", "target_probs"),
            stopwatch.watch("accept", ranks.stopping(stopping), "cut"),
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
        stored = target.store(cache, sequences, padding) if as_dict or cache is not None else None
        for part in (target, drafter):
            part.release()
        if not as_dict:
            return sequences
        result = self._as_dict(model, inputs, output, stored)
        result.statistics = statistics
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

    def _let_rows_wait(self, batch: Batch, target: CachedModel, drafter: Drafter, sampler: Sampler) -> None:
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
        survival = output.survival()
        common: dict[str, Any] = {
            "sequences": output.sequences(),
            "scores": output.steps("scores"),
            "logits": output.steps("logits"),
            "past_key_values": stored,
            "from_draft": ~survival.isnan(),
            "survival": survival,
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

    @staticmethod
    def _padding(model: PreTrainedModel, inputs: Inputs, cache) -> list[int]:
        kwargs = inputs.model_kwargs
        is_encoder_decoder = model.config.is_encoder_decoder
        mask = kwargs.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
        if cache is not None:
            checks.check_cache(cache, inputs.input_ids, inputs.generation_config, mask)
        if not is_encoder_decoder and kwargs.get("inputs_embeds") is None:
            checks.check_prompt(mask, inputs.input_ids)
        return padding_of(mask, inputs.input_ids)


def _share_prefill(batch: Batch, num_copies: int, parts) -> None:
    """`num_return_sequences`: read each prompt once, then copy its cache."""
    prompts = Batch(
        batch.tokens[::num_copies, : batch.prompt_width], batch.host_padding[::num_copies], batch.max_length
    )
    copies = [row for row in prompts.rows for _ in range(num_copies)]
    for part in parts:
        if not part.keeps_rows_together:  # transformers' own cache is filled as plain `generate` fills it
            part.prefill(prompts)
            part.select(copies)
