"""Every error a user can meet, raised before the first forward: the argument, the value, the way out."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel

from .configuration import Options
from .types import Drafter, Rule, Schedule
from .verification import SampledVerification

SCHEDULE_NAMES = ("constant", "heuristic", "heuristic_transient")
LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
ATTENTION = ("sdpa", "eager")
PLAIN_INPUTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "labels"}


def check_options(options: Options) -> None:
    """The values of the options, as far as they can be judged without the models."""
    _check_positive_int("num_draft_tokens", options.num_draft_tokens)
    _check_positive_int("max_matching_ngram_size", options.max_ngram)
    for name in options.lookbehinds:
        _check_positive_int(name, options.lookbehinds[name])
    if options.schedule_name not in SCHEDULE_NAMES:
        raise ValueError(
            f"`num_assistant_tokens_schedule={options.schedule_name!r}` is not one of {', '.join(SCHEDULE_NAMES)}; for your "
            "own, pass `speculative_config=SpeculativeConfig(schedule=...)`."
        )
    threshold = options.confidence_threshold
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise ValueError(f"`assistant_confidence_threshold={threshold!r}` is a probability: give a number from 0 to 1.")
    config = options.config
    if config.drafter is not None and not isinstance(config.drafter, Drafter):
        raise TypeError(f"`drafter` is a {type(config.drafter).__name__}: subclass hf_speculative.Drafter.")
    for name, value, kind in (("rule", config.rule, Rule), ("schedule", config.schedule, Schedule)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"`{name}={value!r}`: pass an object of a subclass of hf_speculative.{kind.__name__}.")
    if config.reproducible not in (None, True, False):
        raise TypeError(f"`reproducible={config.reproducible!r}`: pass True or False.")
    if config.rule is not None and not config.rule.lossless and not config.allow_lossy:
        raise ValueError(
            f"the rule {type(config.rule).__name__} does not declare itself lossless, so that the output would not have the "
            "target's law: choose another, or pass SpeculativeConfig(allow_lossy=True) if that is what you want."
        )
    if config.reproducible and config.rule is not None and not isinstance(config.rule, SampledVerification):
        raise ValueError(
            f"`reproducible=True` emits what plain `generate` draws, which only SampledVerification can do, but the rule is "
            f"{type(config.rule).__name__}: leave one of the two out."
        )
    if config.generator is not None and not isinstance(config.generator, torch.Generator):
        raise TypeError(f"`generator` is a {type(config.generator).__name__}: pass a torch.Generator.")


def check_generation(
    options: Options,
    model: PreTrainedModel,
    input_ids: Tensor,
    generation_config: GenerationConfig,
    model_kwargs: dict,
    has_early_stops: bool,
) -> None:
    """The call as `generate` prepared it."""
    config = generation_config
    if config.num_beams is not None and config.num_beams > 1:
        raise ValueError(
            f"`num_beams={config.num_beams}` searches, a draft samples or follows the argmax: set `num_beams=1`, or pass "
            "`draft_model=None` for plain beam search."
        )
    if config.use_cache is False:
        raise ValueError("`use_cache=False` leaves nothing to verify drafts with: set `use_cache=True`.")
    if options.generator_in_call and not config.do_sample:
        raise ValueError("`generator` has no effect on greedy decoding: set `do_sample=True` or leave it out.")
    unsupported = {
        "guidance_scale": config.guidance_scale not in (None, 1),
        "penalty_alpha": bool(config.penalty_alpha) and not config.do_sample and (config.top_k or 0) > 1,
        "dola_layers": config.dola_layers is not None,
        "constraints": config.constraints is not None,
        "force_words_ids": config.force_words_ids is not None,
        "token_healing": bool(config.token_healing),
        "prefill_chunk_size": config.prefill_chunk_size is not None,
        "output_attentions": bool(config.return_dict_in_generate and config.output_attentions),
        "output_hidden_states": bool(config.return_dict_in_generate and config.output_hidden_states),
        "compile_config": config.compile_config is not None,
        "cache_implementation": config.cache_implementation not in (None, "dynamic", "static"),
    }
    for name, is_used in unsupported.items():
        if is_used:
            raise ValueError(
                f"`{name}={getattr(config, name)!r}` is not supported together with a draft: leave it out, or pass "
                "`draft_model=None` for plain decoding."
            )
    for name, value in model_kwargs.items():
        if name not in PLAIN_INPUTS and value is not None and value is not False:
            raise ValueError(
                f"`{name}` is not supported together with a draft: only token ids are. Leave it out, or pass "
                "`draft_model=None` for plain decoding."
            )
    _check_rope(model, input_ids.shape[1], config.max_length)
    if input_ids.shape[1] == 0:
        raise ValueError("the prompt is empty: a draft needs at least one token, the model's bos token for example.")
    if input_ids.shape[0] > 1 and has_early_stops and config._pad_token_tensor is None:
        raise ValueError(
            "rows may stop at different lengths and there is no token to fill up with: pass `pad_token_id=` (the eos token's "
            "id will do)."
        )


def padding_of(attention_mask: Tensor | None, position_ids: Tensor | None, input_ids: Tensor) -> list[int]:
    """Columns of left padding in each row.

    Raises:
        ValueError: the mask hides anything but left padding, or the positions are not those of a plain prompt.
    """
    width = input_ids.shape[1]
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"`attention_mask` has shape {tuple(attention_mask.shape)}, the prompt {tuple(input_ids.shape)}: pass the whole "
            "sequence, and a mask as wide, also when `past_key_values` holds a part of it."
        )
    mask = attention_mask.bool()
    padding = (~mask).sum(1)
    expected = torch.arange(width, device=mask.device) >= padding[:, None]
    if not torch.equal(mask, expected) or bool((padding == width).any()):
        raise ValueError("`attention_mask` hides more than left padding: set `padding_side='left'` on the tokenizer.")
    if position_ids is not None:
        plain = torch.arange(width, device=mask.device) - padding[:, None]
        fits = position_ids.shape in (input_ids.shape, (1, width))
        if not fits or not torch.equal(position_ids.to(mask.device).expand_as(input_ids)[mask], plain[mask]):
            raise ValueError("`position_ids` other than a plain prompt's are not supported together with a draft.")
    return padding.tolist()


def check_cache(cache, input_ids: Tensor, generation_config: GenerationConfig) -> Cache | None:
    """The cache the user gave, filled or not; `None` if transformers made it.

    Raises:
        ValueError: it is of a kind that cannot be continued, or the ids are not those of the whole sequence.
    """
    if cache is None or not getattr(cache, "_is_user_defined", cache.get_seq_length() > 0):
        return None
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise ValueError(
            f"`past_key_values` is a {type(cache).__name__}: pass a DynamicCache, without offloading, or none."
        )
    length, width = cache.get_seq_length(), input_ids.shape[1]
    whole = getattr(generation_config, "_mask_length", width)
    if length >= width or whole != width:
        raise ValueError(
            f"`past_key_values` holds {length} tokens and the ids given are {width}: pass the whole sequence, what the cache "
            "holds included; only the rest is fed."
        )
    return cache


def unwrap(model, argument: str) -> PreTrainedModel:
    """A LoRA-style wrapper's own model, adapters included; anything else as it is."""
    if isinstance(model, nn.Module) and not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):
        if getattr(model.active_peft_config, "is_prompt_learning", False):
            raise ValueError(
                f"`{argument}` is a {type(model).__name__} that prepends learned prompts, which the cache cannot hold: merge "
                "it, or use a LoRA adapter."
            )
        return model.get_base_model()
    return model


def why_not_ragged(model) -> str | None:
    """What about `model` the ragged cache cannot hold, seen from its class and config alone; `None` if nothing."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if model.config.is_encoder_decoder:
        return "is an encoder-decoder model"
    if "local" in (getattr(config, "attention_layers", None) or []):
        return "has local attention that counts its window from the cache's end"
    if getattr(model, "_is_stateful", False):
        return "has a recurrent state, which cannot be rolled back"
    if not kinds <= LAYER_TYPES:
        return f"has layers of type {', '.join(sorted(kinds - LAYER_TYPES))}, whose state cannot be rolled back"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "takes positions from its cache's length rather than from `position_ids`"
    return None


def check_model(model, argument: str) -> None:
    """Refuse, by name, a model that no cache of ours fits.

    Raises:
        TypeError: not a transformers model.
        ValueError: what about it does not fit, and the way out.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"`{argument}` is a {type(model).__name__}: pass a transformers model, or the name of one.")
    way_out = "use another draft" if argument == "draft_model" else "pass `draft_model=None` for plain decoding"
    reason = why_not_ragged(model)
    if reason is not None:
        raise ValueError(f"`{argument}`: {type(model).__name__} {reason}, which is not supported yet: {way_out}.")
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    if attention not in ATTENTION:
        raise ValueError(
            f"`{argument}` uses attn_implementation={attention!r}, which takes no explicit mask: load it with "
            f"attn_implementation='sdpa'."
        )
    from .models.probe import fits_ragged  # late: it runs the model, and only for a type the tests do not cover

    if not fits_ragged(model):
        raise ValueError(
            f"`{argument}`: {type(model).__name__} gives other logits through a ragged cache than in one forward, so that "
            f"it cannot be verified exactly: {way_out}."
        )


def _check_rope(model: PreTrainedModel, prompt_width: int, max_length: int) -> None:
    """Rotary tables that change with the text's length: what plain decoding computes then depends on its steps."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *(entry for entry in parameters.values() if isinstance(entry, dict))):
        kind = rope.get("rope_type")
        limit = config.max_position_embeddings
        if kind == "longrope":
            limit = rope.get(
                "original_max_position_embeddings", getattr(config, "original_max_position_embeddings", limit)
            )
        crosses = max_length > limit and (kind == "dynamic" or prompt_width <= limit)
        if kind in ("dynamic", "longrope") and crosses:
            raise ValueError(
                f"the model's {kind} position embeddings change at {limit} tokens and `max_length={max_length}` is beyond: "
                f"generate up to {limit} tokens, prompt included, or pass `draft_model=None` for plain decoding."
            )


def _check_positive_int(name: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}={value!r}` is a {type(value).__name__}: give a whole number, 1 or more.")
    if value < 1:
        raise ValueError(f"`{name}={value}` drafts nothing: give 1 or more, or `draft_model=None` for plain decoding.")
