"""What transformers' `generate` hands over to: it puts the parts together, runs the loop and returns what was asked for."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from . import checks
from .configuration import Options
from .drafting import PromptLookup
from .lookahead import ConfidenceStop, Constant, Heuristic
from .loop import speculate
from .models import CachedModel, with_cache
from .output import Output
from .pairing import drafter_for
from .processing import Processors
from .sampling import Coupled, Greedy, Independent, Sampler
from .statistics import Statistics, Stopwatch, publish
from .stopping import Stopping
from .types import Batch, Drafter, Rule, Schedule
from .verification import BlockVerification, SampledVerification


@dataclass
class GenerateSpeculativeOutput(GenerateDecoderOnlyOutput):
    """transformers' `GenerateDecoderOnlyOutput` with the statistics of the call.

    `scores` and `logits` have one `(batch, vocab)` entry a step, as in plain `generate`; a row that is done is 0 there.
    `past_key_values` is filled for a batch of one, and `None` for larger ones. `from_draft (batch, new)` says which of the
    new tokens the draft had guessed.
    """

    statistics: Statistics | None = None
    from_draft: Tensor | None = None


class SpeculativeDecoding:
    """What transformers' `generate` hands over to once all is prepared."""

    def __init__(self, options: Options):
        self.options = options

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs,
    ) -> Tensor | GenerateSpeculativeOutput:
        streamer = self.options.streamer
        as_dict = bool(generation_config.return_dict_in_generate)
        keep_scores = as_dict and bool(generation_config.output_scores)
        stopping = Stopping(stopping_criteria, input_ids.shape[0], keep_scores)
        checks.check_generation(
            self.options, model, input_ids, generation_config, model_kwargs, stopping.rows_may_differ
        )
        padding = checks.padding_of(model_kwargs.get("attention_mask"), model_kwargs.get("position_ids"), input_ids)
        cache = checks.check_cache(model_kwargs.get("past_key_values"), input_ids, generation_config)
        if streamer is not None:
            streamer.put(input_ids.cpu())

        assert stopping.max_length is not None  # transformers' generate always sets one
        stopwatch = Stopwatch(input_ids.device)
        batch = Batch(input_ids, padding, stopping.max_length)
        target, drafter = with_cache(model), self._drafter(model, generation_config)
        sampler = self._sampler(model, batch, logits_processor, generation_config)
        rule = self.options.config.rule or self._default_rule(sampler, drafter)
        num_forwards_before = drafter.num_forwards
        drafter.begin(batch, sampler)
        if cache is not None and cache.get_seq_length():
            target.load(cache, batch)
        elif (num_copies := generation_config.num_return_sequences or 1) > 1:
            _share_prefill(batch, num_copies, (target, drafter))

        output, statistics = Output(input_ids, generation_config, streamer), Statistics(num_calls=1)
        rounds = speculate(
            batch,
            stopwatch.watch("verify", target, "logits"),
            stopwatch.watch("draft", drafter, "propose", "rollback"),
            stopwatch.watch("accept", rule, "__call__"),
            self._schedule(),
            stopwatch.watch("verify", sampler, "target_scores", "probs"),
            stopwatch.watch("accept", stopping, "cut"),
        )
        try:
            for round in rounds:
                statistics.follow(round)
                output.follow(round)
        finally:
            rounds.close()
            sampler.finish()
            statistics.num_target_forwards = target.num_forwards
            statistics.num_draft_forwards = drafter.num_forwards - num_forwards_before
            statistics.seconds = stopwatch.seconds()
            publish(statistics)
        if streamer is not None:
            streamer.end()
        sequences = output.sequences()
        stored = _store_cache(target, cache, model, sequences, padding) if as_dict or cache is not None else None
        if not as_dict:
            return sequences
        return GenerateSpeculativeOutput(
            sequences=sequences,
            scores=output.steps("scores"),
            logits=output.steps("logits"),
            past_key_values=stored,
            statistics=statistics,
            from_draft=output.from_draft(),
        )

    def _drafter(self, model: PreTrainedModel, generation_config: GenerationConfig) -> Drafter:
        options = self.options
        if options.config.drafter is not None:
            return options.config.drafter
        if options.prompt_lookup_num_tokens is not None:
            return PromptLookup(options.max_ngram)
        return drafter_for(options, model, bool(generation_config.do_sample))

    def _schedule(self) -> Schedule:
        options = self.options
        if options.config.schedule is not None:
            return copy.deepcopy(options.config.schedule)  # what it learns in this call ends with it
        kind = Constant if options.schedule_name == "constant" else Heuristic
        schedule = kind(options.num_draft_tokens)
        return ConfidenceStop(schedule, options.confidence_threshold) if options.confidence_threshold else schedule

    def _sampler(
        self, model: PreTrainedModel, batch: Batch, logits_processor: LogitsProcessorList, config: GenerationConfig
    ) -> Sampler:
        vocab_size = model.config.get_text_config(decoder=True).vocab_size
        processors = Processors(logits_processor, len(batch.rows))
        own = self.options.config
        if not config.do_sample:
            return Greedy(processors, vocab_size)
        if own.reproducible:
            return Coupled(processors, vocab_size, len(batch.rows), batch.tokens.device, own.generator)
        return Independent(processors, vocab_size, own.generator)

    @staticmethod
    def _default_rule(sampler: Sampler, drafter: Drafter) -> Rule:
        one_hot = sampler.one_hot_proposals or drafter.one_hot_proposals
        return SampledVerification() if one_hot else BlockVerification()


def _share_prefill(batch: Batch, num_copies: int, parts) -> None:
    """`num_return_sequences`: read each prompt once, then copy its cache."""
    prompts = Batch(
        batch.tokens[::num_copies, : batch.prompt_width], batch.host_padding[::num_copies], batch.max_length
    )
    copies = [row for row in prompts.rows for _ in range(num_copies)]
    for part in parts:
        part.prefill(prompts)
        part.select(copies)


def _store_cache(target: CachedModel, cache, model: PreTrainedModel, sequences: Tensor, padding: list[int]):
    """What plain `generate` leaves behind: the cache of all tokens but the last, in the user's own object if given."""
    if sequences.shape[0] > 1:
        return None
    stored = target.store(
        DynamicCache(config=model.config.get_text_config(decoder=True)), sequences.shape[1] - 1, padding[0]
    )
    if cache is None:
        return stored
    cache.layers = stored.layers
    return cache
