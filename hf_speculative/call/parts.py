"""Build the parts of a call: target, drafter, schedule, sampler, rule."""

import copy
import warnings

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..drafting.source import BuildContext
from ..interfaces import CachedModel, Drafter, Rule, Sampler, Schedule
from ..models import FixedShape, Inputs, UniversalModel, choose_for, fits_trees, fixes_bits, free_columns, num_logits
from ..models.execution import multimodal_model, ragged_model
from ..sampling.logits_processors import Processors
from ..sampling.samplers import CHOSEN, Coupled, Greedy, Independent, ProcessedSampler, default_generator
from ..sampling.stateful import Memories
from ..schedules import SCHEDULE_NAMES, ConfidenceStop
from ..schedules.wrapped import WrappedSchedule
from ..types import Batch
from ..verification import RULES, BlockVerification, Measured, Narrowed, SampledVerification, rule_for
from . import checks
from .configuration import Options, SpeculativeConfig
from .output import output_names


def target_and_drafter(
    options: Options, model: PreTrainedModel, inputs: Inputs, inputs_tensor: Tensor | None
) -> tuple[CachedModel, Drafter]:
    """Build the target with its cache, and the drafter.

    Args:
        inputs: the call as the target's `generate` prepared it.
        inputs_tensor: the target's main input: the prompt's ids, or what its encoder read.
    """
    source, num_rows = options.source, inputs.input_ids.shape[0]
    path = choose_for(model, inputs, not (source.reads_target or source.needs_ragged or options.is_bitwise))
    execution = options.execution(model)
    checks.check_path(source, model, path)
    checks.check_bitwise(options, model, path, inputs)
    checks.check_passes(options, source, model)
    lanes = options.config.lanes or options.rows_at_once or num_rows
    num_columns = free_columns(model, execution, lanes) if options.is_bitwise else 0
    is_static = options.is_bitwise and not num_columns
    if path.name == "universal":  # before the draft: both may be of one type
        checks.check_universal(model, inputs, "model")
        checks.check_whole_states(source, inputs)
    keep, kwargs = output_names(model, inputs.generation_config), options.generate_kwargs
    call = BuildContext(model, inputs, path, keep, inputs_tensor, kwargs, execution, is_static)
    target, drafter = source.build(call)
    if (learner := options.config.learn) is not None:
        drafter = learner.follow(model, drafter, inputs)
    if target is None and path.has_media:
        target = multimodal_model(model, inputs, execution=execution)
    elif target is None and path.name == "ragged":
        target = ragged_model(model, execution=execution, is_static=is_static)
    elif target is None:
        target = UniversalModel(model, inputs, keep=keep)
    target.rows_are_alone = options.rows_at_once is not None
    if num_columns:
        target.reads_alone, target.max_columns = True, num_columns
        target.takes_trees = target.takes_levels  # recurrences round otherwise over a tree
    if is_static:
        target = _of_one_shape(model, target, lanes, min(num_rows, options.rows_at_once or num_rows))
    return target, drafter


def _of_one_shape(model: PreTrainedModel, target: CachedModel, lanes: int, num_rows: int) -> FixedShape:
    """Wrap `target` in passes of one shape, if that fixes its bits on this machine."""
    fixed = FixedShape(target, lanes)  # type: ignore[arg-type]
    if not fixes_bits(model, fixed, num_rows):
        why = f"logits of {type(model).__name__} are other bits where other columns or rows of a pass hold other tokens"
        raise ValueError(f"`reproducible='bitwise'`: {why}, as tried on this machine: {checks.WITHIN_ROUNDING}.")
    return fixed


def make_schedule(options: Options) -> Schedule:
    source, length = options.source, (options.num_draft_tokens, options.length_is_default)
    if options.config.schedule is not None:
        return copy.deepcopy(options.config.schedule)  # what it learns in this call ends with it
    name = options.schedule_name
    schedule = source.adaptive_schedule(*length) if name == "adaptive" else SCHEDULE_NAMES[name](length[0])
    if threshold := options["assistant_confidence_threshold"]:
        schedule = ConfidenceStop(schedule, threshold)
    return source.around(schedule, *length)


class WithinReach(WrappedSchedule):
    """`schedule` in rounds in which processors can look ahead of the text; no draft in others.

    Those with a memory are first called, and copied, in a round without a draft.
    """

    def __init__(self, schedule: Schedule, memories: Memories):
        super().__init__(schedule)
        self.memories = memories

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        why = self.memories.lookahead_unsupported_reason
        return self.schedule.reason if why is None else str(why)

    def plan(self, batch: Batch) -> list[int]:
        may_follow = self.memories.has_begun and self.memories.lookahead_unsupported_reason is None
        return self.schedule.plan(batch) if may_follow else [0] * len(batch.rows)


def within_reach(schedule: Schedule, processors: Processors) -> Schedule:
    """`schedule`, limited where processors have to be called once a token and in order."""
    if (why := processors.memories.lookahead_unsupported_reason) is not None:
        warnings.warn(f"nothing is drafted in this call: {why}", stacklevel=2)
    return WithinReach(schedule, processors.memories) if processors.have_memory else schedule


def make_sampler(
    own: SpeculativeConfig, model: PreTrainedModel, batch: Batch, processors: Processors, config: GenerationConfig
) -> ProcessedSampler:
    vocab_size = num_logits(model)
    if not config.do_sample:
        return Greedy(processors, vocab_size)
    if own.reproducible:
        return Coupled(processors, vocab_size, batch, own.generator)
    return Independent(processors, vocab_size, own.generator, own.draft_sample_method or CHOSEN)


def drawn_from(own: SpeculativeConfig, device: torch.device) -> torch.Generator | None:
    """The generator of a sampled call; `None` where no global one of the device is known."""
    if own.generator is None and device.type in ("cpu", "cuda"):
        return default_generator(device)
    return own.generator


def may_branch(drafter: Drafter, model: PreTrainedModel, target: CachedModel, sampler: Sampler, rule: Rule) -> bool:
    """Whether the drafter makes trees and all other parts take them."""
    parts_do = all(part.takes_trees for part in (target, sampler, rule))
    return parts_do and drafter.branches_with(sampler) and fits_trees(model)


def make_rule(own: SpeculativeConfig, sampler: Sampler, drafter: Drafter) -> Rule:
    one_hot = sampler.one_hot_proposals or drafter.one_hot_proposals
    rule = rule_for(own.rule) or (SampledVerification() if one_hot else BlockVerification())
    judge = Measured(rule) if rule.reads_draft_probs and sampler.measures_drafts else rule
    return Narrowed(judge) if type(rule) in RULES.values() else judge  # others may look for tokens by their ids
