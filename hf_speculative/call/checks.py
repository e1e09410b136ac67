"""Checks of a call before its first forward; errors name the argument, the value and the way out."""

import inspect
import warnings
from typing import Any
from weakref import WeakSet

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..distributed.tensor_parallel import all_ranks_draft
from ..drafting.source import DraftSource
from ..hf_compat import CACHE_ARGUMENTS, is_given_by_user, pad_token
from ..interfaces import Drafter
from ..models import Inputs, Path, artifacts, choose, counts_itself, states_unsupported_reason, weights_of_a_pass
from ..models.checks import OTHERWISE, check_model, check_type, check_universal, quantised_inputs, unwrap  # noqa: F401
from ..models.model_state import kept_with
from ..verification import rule_for
from .configuration import Options, first_given
from .statistics import Statistics

#: warn of a draft that computes this much more than its target; adapters on one of two equal models are less
NEARLY_AS_DEAR = 1.1
#: passes of a call without a draft before a warning
ENOUGH_PASSES = 48
PLAINLY = "pass `draft_model=None` for plain decoding"
WITHIN_ROUNDING = "use `reproducible=True`, which holds within rounding"
#: settings that no draft goes with
NOT_BESIDE_DRAFTS = ("dola_layers", "constraints", "force_words_ids", "compile_config")
#: kept in preallocated tensors by the ragged path, and in a cache that can be rolled back by the universal one
STATIC_CACHES = ("static", "sliding_window", "hybrid", "hybrid_chunked")


def check_settings(kwargs: dict[str, Any], configs: list[GenerationConfig]) -> None:
    """Refuse settings of the call or its generation configs that transformers has and speculation does not support."""
    configured = first_given(*(getattr(config, "assistant_ensemble_weight", None) for config in configs))
    if (weight := kwargs.get("assistant_ensemble_weight", configured)) is not None:
        raise ValueError(f"`assistant_ensemble_weight={weight}` gives tokens that are not exact: leave it out.")
    cache = first_given(kwargs.get("cache_implementation"), *(config.cache_implementation for config in configs))
    if cache not in (None, "dynamic", *STATIC_CACHES):
        raise ValueError(f"`cache_implementation={cache!r}` cannot take drafts back: leave it out, or {PLAINLY}.")


def check_options(options: Options) -> None:
    """Check options against each other and this machine, without the models."""
    config = options.config
    threshold = options["assistant_confidence_threshold"]
    if threshold and options.source.counts_nodes:
        beside = f"beside `assistant_confidence_threshold={threshold}`"
        raise ValueError(f"`tree_top_k` and `tree_depth` have no effect {beside}: leave one out.")
    rule = rule_for(config.rule)
    if rule is None:
        return
    name = type(rule).__name__
    if not (rule.lossless or config.allow_lossy):
        way_out = "choose another, or `SpeculativeConfig(allow_lossy=True)`"
        raise ValueError(f"the rule {name} does not declare itself lossless: {way_out}.")
    if config.reproducible and not rule.emits_draws:
        needs = f"`reproducible={config.reproducible!r}` needs the rule SampledVerification"
        raise ValueError(f"{needs}, and yours is {name}: leave one out.")


def check_bitwise(options: Options, model: PreTrainedModel, path: Path, inputs: Inputs) -> None:
    """Refuse `reproducible="bitwise"` for a target, source or rows whose bits depend on the draft."""
    lanes = options.config.lanes
    if not options.is_bitwise:
        if "lanes" in options.in_call:
            raise ValueError(f"`lanes={lanes}` has no effect without `reproducible='bitwise'`: give both, or neither.")
        return
    num_rows = len(inputs.input_ids)
    num_rows = min(num_rows, options.rows_at_once or num_rows)
    reason, way_out = None, WITHIN_ROUNDING
    if path.name != "ragged":
        reason, way_out = f"{type(model).__name__} {path.reason}", path.way_out or WITHIN_ROUNDING
    elif counts_itself(model):
        reason = f"{type(model).__name__} takes positions from its cache's length"
    elif options.source.writes_target:
        reason, way_out = f"`{options.source.name}` drafts into the target's own cache", "use another draft"
    elif is_given_by_user(inputs.cache) and inputs.cache.get_seq_length():
        reason, way_out = "`past_key_values` holds tokens, whose bits come from other passes", "leave it out"
    if reason is not None:
        raise ValueError(f"`reproducible='bitwise'` needs passes of one shape, and {reason}: {way_out}.")
    if lanes is not None and lanes < num_rows:
        raise ValueError(f"`lanes={lanes}` and {num_rows} rows run together: give {num_rows} or more, or leave it out.")


def check_sample_method(options: Options, config: GenerationConfig, drafter: Drafter) -> None:
    """Refuse `draft_sample_method` in a call whose draft tokens are not sampled."""
    own = options.config
    if "draft_sample_method" not in options.in_call:  # what was attached is for calls that can use it
        return
    reason = None
    if not config.do_sample:
        reason = "greedy decoding: set `do_sample=True`"
    elif own.reproducible:
        reason = f"`reproducible={own.reproducible!r}`, whose drafts follow plain decoding's noise: leave one out"
    elif drafter.one_hot_proposals:
        reason = f"drafts by `{options.source.name}`, which are guessed without chance: leave it out"
    if reason is not None:
        raise ValueError(f"`draft_sample_method={own.draft_sample_method!r}` has no effect on {reason}.")


def check_generation(
    options: Options, model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, has_early_stops: bool
) -> None:
    """Check the call after `generate` has prepared it."""
    if config.use_cache is False:
        raise ValueError("`use_cache=False` leaves nothing to verify drafts with: set `use_cache=True`.")
    if "generator" in options.in_call and not config.do_sample:
        raise ValueError("`generator` has no effect on greedy decoding: set `do_sample=True` or leave it out.")
    generator, place = options.config.generator, input_ids.device.type
    if config.do_sample and generator is not None and generator.device.type != place:
        own = generator.device.type
        raise ValueError(f"`generator` draws on {own} and the prompt is on {place}: give `torch.Generator({place!r})`.")
    unsupported = {
        "num_beams": (config.num_beams or 1) > 1,
        "penalty_alpha": bool(config.penalty_alpha) and not config.do_sample and (config.top_k or 0) > 1,
        **{name: getattr(config, name) is not None for name in NOT_BESIDE_DRAFTS},
    }
    for name, is_used in unsupported.items():
        if is_used:
            value = getattr(config, name)
            raise ValueError(f"`{name}={value!r}` is not supported beside a draft: leave it out, or {PLAINLY}.")
    caches = [name for name in CACHE_ARGUMENTS if name in inspect.signature(model.forward).parameters]
    if config.guidance_scale not in (None, 1) and caches and "past_key_values" not in caches:
        needs = f"`guidance_scale={config.guidance_scale}` needs `past_key_values`"
        raise ValueError(f"{needs}, and {type(model).__name__} has `{caches[0]}`: leave it out, or {PLAINLY}.")
    _check_length(model, input_ids.shape[1], config.max_length)
    if input_ids.shape[0] > 1 and has_early_stops and pad_token(config) is None:
        raise ValueError("rows may end apart: pass `pad_token_id=` to fill up with (the eos token's id will do).")


def check_source(source: DraftSource, model: PreTrainedModel) -> None:
    """Refuse a source of drafts that does not fit the target `model`."""
    if source.needs_ragged or source.reads_states:
        check_path(source, model, choose(model))
    if source.parts and all_ranks_draft(model, source.draft_model, source.reads_target):
        raise ValueError("`draft_model` lists guesses beside a draft that several ranks run together: give one of the two.")
    source.check(model)


def warn_of_size(source: DraftSource, model: PreTrainedModel) -> None:
    """Warn of a draft model that computes more than its target `model`."""
    draft = source.draft_model
    if draft is None:
        return
    size, draft_size = (weights_of_a_pass(one) for one in (model, draft))
    if draft_size > NEARLY_AS_DEAR * size:
        sizes = f"{draft_size:,} weights of {type(draft).__name__} and {size:,} of the target"
        why = "drafts cost more than they can save: are the two mixed up?"
        warnings.warn(f"`draft_model`: a token takes {sizes}, so that {why}", stacklevel=2)


def warn_of_no_draft(source: DraftSource, model: PreTrainedModel, statistics: Statistics) -> None:
    """Warn, once for each pair, that the draft model was never used, since it does not pay."""
    draft, told = source.draft_model, kept_with(model).setdefault(warn_of_no_draft, WeakSet())
    if draft is None or statistics.reason is None or statistics.num_target_forwards < ENOUGH_PASSES or draft in told:
        return
    told.add(draft)
    found = f"nothing was drafted, and this call was plain decoding: {statistics.reason}"
    way_out = "`hf_speculative.check(target, draft, measure=True)` tries what there is"
    warnings.warn(f"{found}. A smaller draft, or one that is right more often, would help; {way_out}.", stacklevel=2)


def check_path(source: DraftSource, model: PreTrainedModel, path: Path) -> None:
    """Check that the target's path provides what the source reads."""
    if source.needs_ragged:
        check_ragged(model, path, source.name)
    elif source.reads_states and path.name == "universal" and (reason := states_unsupported_reason(model)) is not None:
        raise ValueError(f"`{source.name}` reads hidden states, and {type(model).__name__} {reason}: {OTHERWISE}.")


def check_whole_states(source: DraftSource, inputs: Inputs) -> None:
    """Drafts that read states, beside prompts of which the universal path does not see ids and states as a whole."""
    if not source.reads_states:
        return
    if inputs.input_ids.shape[1] == 0:
        way_out = "pass `input_ids=` as well, or use another draft"
        raise ValueError(f"`{source.name}` reads the prompt's ids, not `inputs_embeds`: {way_out}.")
    if (size := inputs.generation_config.prefill_chunk_size) is not None:
        raise ValueError(f"`prefill_chunk_size={size}` hides states that `{source.name}` reads: leave one of them out.")


def check_ragged(model, path: Path, what: str) -> None:
    """Refuse drafts that read the target's layers, keys or values, for a target without a ragged cache."""
    if path.name != "ragged":
        way_out = f"{path.way_out}, or use a draft model that decodes on its own" if path.way_out else OTHERWISE
        raise ValueError(f"`{what}` reads a ragged cache, and {type(model).__name__} {path.reason}: {way_out}.")


def check_passes(options: Options, source: DraftSource, model: PreTrainedModel) -> None:
    """Drafts that read the target's layers take them out of eager passes; its states, of compiled or captured ones too."""
    if options.config.optimize is not True or not source.reads_target:  # "auto" is eager where it has to be
        return
    why = "out of eager passes"
    if source.reads_states:
        if options.execution(model).captures or (reason := artifacts.unsupported_reason(model)) is None:
            return
        why = f"and {type(model).__name__} {reason}"
    way_out = "leave it out, or use a `draft_model=` that decodes on its own or `draft_model='ngram'`"
    reads = f"`{source.name}`, which reads the target's states {why}"
    raise ValueError(f"`optimize=True` has no effect on drafts by {reads}: {way_out}.")


def _check_length(model: PreTrainedModel, prompt_width: int, max_length: int) -> None:
    """Refuse a text so long that what plain decoding computes depends on how many tokens a pass has.

    Rotary tables may change with the length. Attention that keeps the best keys breaks ties by the shape of a pass.
    """
    config = model.config.get_text_config(decoder=True)
    limits: dict[str, int] = {}
    for name in ("index_topk", "keep_window_size"):
        if (limit := getattr(config, name, None)) is not None:
            limits[f"attends to the best {name}={limit} keys, with ties broken by the shape of a pass"] = limit
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *(entry for entry in parameters.values() if isinstance(entry, dict))):
        kind = rope.get("rope_type")
        if kind not in ("dynamic", "longrope"):
            continue
        limit = config.max_position_embeddings
        if kind == "longrope":
            limit = rope.get("original_max_position_embeddings", limit)
        if kind == "dynamic" or prompt_width <= limit:
            limits[f"has {kind} position embeddings, which change at {limit} tokens"] = limit
    for what, limit in limits.items():
        if max_length > limit:
            way_out = f"generate up to {limit} tokens, prompt included, or {PLAINLY}"
            raise ValueError(f"{type(model).__name__} {what}, and `max_length={max_length}` is beyond: {way_out}.")
