"""Which parts a call gets: target, drafter, schedule, sampler, rule."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..distributed.tensor_parallel import Alone, ranks_of
from ..drafting import EarlyExit, Mtp, PromptLookup
from ..interfaces import CachedModel, Drafter, Rule, Sampler, Schedule
from ..models import EarlyExitModel, Inputs, RecordingModel, UniversalModel, choose_for, num_logits, ragged_model
from ..sampling.logits_processors import Processors
from ..sampling.samplers import Coupled, Greedy, Independent, ProcessedSampler, default_generator
from ..schedules import SCHEDULE_NAMES, ConfidenceStop, Constant, Together
from ..types import Batch
from ..verification import BlockVerification, SampledVerification, rule_for
from . import checks
from .configuration import Options, SpeculativeConfig
from .draft_models import draft_model_drafter
from .output import output_names
from .self_drafting import mtp_heads, tied_drafter


def target_and_drafter(
    options: Options, model: PreTrainedModel, inputs: Inputs, inputs_tensor: Tensor | None
) -> tuple[CachedModel, Drafter]:
    """The target with its cache, and who drafts for it.

    Args:
        inputs: the call as the target's `generate` prepared it.
        inputs_tensor: the target's main input: the prompt's ids, or what its encoder read.
    """
    path, own = choose_for(model, inputs), options.config
    if options.early_exit is not None:
        checks.check_ragged(model, path, "assistant_early_exit")
        checks.check_eager(own, "assistant_early_exit")
        halves = EarlyExitModel(model, options.early_exit)
        return halves, EarlyExit(halves)
    if path.name == "universal":  # before the draft: both may be of one type
        checks.check_universal(model, inputs, "model")
    drafter = _drafter(options, model, inputs, inputs_tensor)
    target: CachedModel
    if drafter.hidden_layers:
        checks.check_ragged(model, path, type(drafter).__name__)
        checks.check_eager(own, type(drafter).__name__)
        target = RecordingModel(model, drafter.hidden_layers)
    elif path.name == "ragged":
        target = ragged_model(model, compile=bool(own.compile), cuda_graphs=bool(own.cuda_graphs))
    else:
        target = UniversalModel(model, inputs, keep=output_names(model, inputs.generation_config))
    return target, drafter


def _drafter(options: Options, model: PreTrainedModel, inputs: Inputs, inputs_tensor: Tensor | None) -> Drafter:
    if options.config.drafter is not None:
        return options.config.drafter
    if options.prompt_lookup_num_tokens is not None:
        return PromptLookup(options.max_ngram)
    if options.use_mtp:
        return Mtp(mtp_heads(model))
    draft = options.draft_model
    assert draft is not None  # read_options returns no Options without a source of drafts
    made_for = tied_drafter(draft)
    if made_for is not None:
        return made_for(draft, model)
    return draft_model_drafter(options, model, inputs, inputs_tensor)


def make_schedule(options: Options) -> Schedule:
    if options.config.schedule is not None:
        return copy.deepcopy(options.config.schedule)  # what it learns in this call ends with it
    schedule = SCHEDULE_NAMES[options.schedule_name](options.num_draft_tokens)
    return ConfidenceStop(schedule, options.confidence_threshold) if options.confidence_threshold else schedule


def within_reach(schedule: Schedule, processors: Processors) -> Schedule:
    """`schedule`, or one that drafts nothing where processors have to be called once a token and in order."""
    if processors.why_not_ahead is None:
        return schedule
    warnings.warn(f"nothing is drafted in this call: {processors.why_not_ahead}", stacklevel=2)
    return Constant(0)


def kept_together(schedule: Schedule, target: CachedModel, drafter: Drafter) -> Schedule:
    """`schedule`, for parts that work best on rows of similar length."""
    return Together(schedule) if target.keeps_rows_together or drafter.keeps_rows_together else schedule


def make_sampler(
    own: SpeculativeConfig,
    model: PreTrainedModel,
    batch: Batch,
    processors: Processors,
    config: GenerationConfig,
) -> ProcessedSampler:
    vocab_size = num_logits(model)
    if not config.do_sample:
        return Greedy(processors, vocab_size)
    if own.reproducible:
        return Coupled(processors, vocab_size, len(batch.rows), batch.tokens.device, own.generator)
    return Independent(processors, vocab_size, own.generator)


def drawn_from(own: SpeculativeConfig, device: torch.device) -> torch.Generator | None:
    """The generator that a sampled call draws from; `None` where torch has no global one that is known here."""
    if own.generator is None and device.type in ("cpu", "cuda"):
        return default_generator(device)
    return own.generator


def make_ranks(options: Options, model: PreTrainedModel) -> Alone:
    """Who decides in a call: one process for itself, or the first of several ranks for all."""
    draft = options.draft_model
    return ranks_of(model, draft, draft_reads_target=draft is not None and tied_drafter(draft) is not None)


def make_rule(own: SpeculativeConfig, sampler: Sampler, drafter: Drafter) -> Rule:
    return rule_for(own.rule) or default_rule(sampler, drafter)


def default_rule(sampler: Sampler, drafter: Drafter) -> Rule:
    one_hot = sampler.one_hot_proposals or drafter.one_hot_proposals
    return SampledVerification() if one_hot else BlockVerification()
