"""Where each option of a call comes from.

The order is: the call, what was attached, the target's generation_config, the draft's generation_config, our default. Nothing
is dropped in silence: an option that would have no effect raises.
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from transformers import GenerationConfig

from .configuration import Options, SpeculativeConfig, first_given

DEFAULT_NUM_DRAFT_TOKENS = 5
DEFAULT_MAX_DRAFT_TOKENS = 16
DEFAULT_MAX_NGRAM = 3
SCHEDULE_OPTIONS = ("num_draft_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
#: fields of `SpeculativeConfig` that a call may give by name as well
SWITCHES = ("reproducible", "compile", "cuda_graphs", "rule")
HANDLED_HERE = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "use_mtp",
    "speculation_type",
)
#: sources of drafts that a `generation_config` can name, in transformers' own order
CONFIGURED_SOURCES = ("assistant_early_exit", "prompt_lookup_num_tokens", "use_mtp")
LOSSY_FIELDS = ("assistant_ensemble_weight",)
#: kept in preallocated tensors by the ragged path, and in a cache that can be taken back by the universal one
STATIC_CACHES = ("static", "sliding_window", "hybrid", "hybrid_chunked")
LOOKBEHINDS = ("target_lookbehind", "assistant_lookbehind")
#: all that a call may say about drafting but the draft itself: none of it changes what plain decoding gives
DRAFTING_OPTIONS = ("num_draft_tokens", *HANDLED_HERE, *LOOKBEHINDS, *SWITCHES)
#: all that a call may give that is read here
CALL_OPTIONS = (
    "draft_model",
    "assistant_model",
    "tokenizer",
    "draft_tokenizer",
    "assistant_tokenizer",
    "generator",
    "speculative_config",
    "streamer",
    "synced_gpus",
    *DRAFTING_OPTIONS,
)
#: so like an option has a name to be that it is taken for a slip (`difflib`)
CLOSE = 0.8


class _Call:
    """Reads options out of a call's keyword arguments, in the documented order."""

    def __init__(self, model, kwargs: dict[str, Any]):
        self.kwargs = dict(kwargs)
        self.given: GenerationConfig | None = self.kwargs.get("generation_config")
        self.levels = [
            config for config in (self.given, getattr(model, "generation_config", None)) if config is not None
        ]

    def pop(self, *names: str):
        """The value given in the call under one of `names`, which mean the same; `None` if not given."""
        values = {name: self.kwargs.pop(name) for name in names if self.kwargs.get(name) is not None}
        for name in names:
            self.kwargs.pop(name, None)
        if len({id(value) if not isinstance(value, (int, float, str)) else value for value in values.values()}) > 1:
            raise ValueError(f"{' and '.join(f'`{n}`' for n in values)} mean the same but differ: give one of them.")
        return next(iter(values.values()), None)

    def configured(self, name: str):
        """The value of a field in the call's or the model's generation_config, later also in the draft's."""
        return first_given(*(getattr(config, name, None) for config in self.levels))

    def first(self, given: dict[str, Any], name: str, default):
        """What the call gives, else what is configured, else the default."""
        return first_given(given[name], self.configured(name), default)


def read_options(
    model, kwargs: dict[str, Any], attached_draft, attached_config: SpeculativeConfig, load
) -> Options | None:
    """Resolve a call's options; `None` if nothing asks for speculation.

    Args:
        kwargs: all of the call's arguments, by name.
        attached_draft: the draft model that `attach` gave the model.
        attached_config: likewise.
        load: turns the name of a draft into the model.
    """
    call = _Call(model, kwargs)
    switched_off = any(name in kwargs and kwargs[name] is None for name in ("draft_model", "assistant_model"))
    draft_model = call.pop("draft_model", "assistant_model")
    given = {
        "num_draft_tokens": call.pop("num_draft_tokens", "num_assistant_tokens"),
        "num_assistant_tokens_schedule": call.pop("num_assistant_tokens_schedule"),
        "assistant_confidence_threshold": call.pop("assistant_confidence_threshold"),
        "max_matching_ngram_size": call.pop("max_matching_ngram_size"),
        "generator": call.pop("generator"),
        "speculation_type": call.pop("speculation_type"),
        "draft_tokenizer": call.pop("draft_tokenizer", "assistant_tokenizer"),
    } | {name: call.pop(name) for name in LOOKBEHINDS}
    tokenizer = call.pop("tokenizer")
    switches = {name: call.pop(name) for name in SWITCHES}
    of_model = {name: first_given(call.pop(name), getattr(call.given, name, None)) for name in CONFIGURED_SOURCES}
    of_model["use_mtp"] = of_model["use_mtp"] or None
    config_in_call = first_given(call.pop("speculative_config"), SpeculativeConfig())
    if not isinstance(config_in_call, SpeculativeConfig):
        raise TypeError(f"`speculative_config` is a {type(config_in_call).__name__}: pass a SpeculativeConfig.")

    sources = {"draft_model": draft_model, **of_model, "drafter": config_in_call.drafter}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(f'`{n}`' for n in named)} are two sources of drafts for one call: give one.")
    if named:
        attached_config = replace(attached_config, drafter=None)
        if draft_model is not attached_draft:  # what was attached along with a draft is about that draft
            attached_config = replace(attached_config, draft_tokenizer=None, vocabulary_mapping=None)
    elif switched_off:
        attached_config = SpeculativeConfig()
    else:
        draft_model = attached_draft
        if draft_model is None and attached_config.drafter is None:
            configured = {name: call.configured(name) for name in CONFIGURED_SOURCES}
            configured["use_mtp"] = configured["use_mtp"] or None
            first = next((name for name, value in configured.items() if value is not None), None)
            of_model = {name: configured[name] if name == first else None for name in CONFIGURED_SOURCES}
    lookup = of_model["prompt_lookup_num_tokens"]
    if config_in_call.schedule is None and any(given[name] is not None for name in SCHEDULE_OPTIONS):
        attached_config = replace(attached_config, schedule=None)  # the call's own word comes first
    own = SpeculativeConfig(
        num_draft_tokens=given["num_draft_tokens"],
        generator=given["generator"],
        **switches,
        tokenizer=tokenizer,
        draft_tokenizer=given["draft_tokenizer"],
    )
    config = own.over(config_in_call).over(attached_config)

    if draft_model is None and config.drafter is None and all(value is None for value in of_model.values()):
        if config_in_call != SpeculativeConfig():
            given["speculative_config"] = config_in_call
        given |= {name: switches[name] for name in ("compile", "cuda_graphs", "rule")}
        _refuse_without_effect(
            given, given.keys(), "without a draft: give `draft_model=` or `prompt_lookup_num_tokens=`"
        )
        return None
    if config_in_call.schedule is not None:
        _refuse_without_effect(given, SCHEDULE_OPTIONS, "beside `speculative_config.schedule`")
    if draft_model is None:
        _refuse_without_effect(given, ["speculation_type"], "without `draft_model=`")
    if lookup is None:
        _refuse_without_effect(given, ["max_matching_ngram_size"], "without `prompt_lookup_num_tokens`")
    else:
        given["num_draft_tokens"] = first_given(given["num_draft_tokens"], config_in_call.num_draft_tokens)
        useless = ("num_draft_tokens", "assistant_confidence_threshold")
        _refuse_without_effect(
            given, useless, "on prompt lookup, which takes its length from `prompt_lookup_num_tokens`"
        )
    if kwargs.get("custom_generate") is not None:
        raise ValueError("`custom_generate` and a draft are two decoding methods for one call: give one of them.")
    _refuse_unsupported(call)

    # What this package handles itself must not reach transformers, which would choose a mode of its own.
    hidden: dict[str, Any] = {name: None for name in HANDLED_HERE if call.configured(name) is not None}
    if call.kwargs.get("use_cache") is None and getattr(call.given, "use_cache", None) is None:
        hidden["use_cache"] = True  # some models' configs switch it off, which changes no token
    draft_model = load(draft_model, model)
    if draft_model is not None:
        call.levels.append(first_given(getattr(draft_model, "generation_config", None), GenerationConfig()))
    length = first_given(lookup, config.num_draft_tokens, call.configured("num_assistant_tokens"))
    # Who names a number of tokens gets it; the number of prompt lookup has always meant "up to".
    default_schedule = "adaptive" if length is None or lookup is not None else "constant"
    schedule_name = call.first(given, "num_assistant_tokens_schedule", default_schedule)
    default_length = DEFAULT_MAX_DRAFT_TOKENS if schedule_name == "adaptive" else DEFAULT_NUM_DRAFT_TOKENS
    return Options(
        draft_model=draft_model,
        prompt_lookup_num_tokens=lookup,
        max_ngram=call.first(given, "max_matching_ngram_size", DEFAULT_MAX_NGRAM),
        num_draft_tokens=first_given(length, default_length),
        schedule_name=schedule_name,
        confidence_threshold=call.first(given, "assistant_confidence_threshold", 0.0),
        config=config,
        early_exit=of_model["assistant_early_exit"],
        use_mtp=of_model["use_mtp"],
        speculation_type=call.first(given, "speculation_type", None),
        length_is_default=length is None,
        generator_in_call=given["generator"] is not None,
        streamer=call.pop("streamer"),
        synced_gpus=call.pop("synced_gpus"),
        lookbehinds={name: value for name in LOOKBEHINDS if (value := call.first(given, name, None)) is not None},
        lookbehinds_in_call=[name for name in LOOKBEHINDS if given[name] is not None],
        generate_kwargs=with_settings(model, call.kwargs, hidden),
    )


def with_settings(model, kwargs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """`kwargs` of `generate`, in which `settings` come first.

    They go into a copy of the call's `generation_config`, if it has one: transformers warns of settings beside it. Only what
    the model's own says as well has to be switched off beside it, for transformers fills a `None` up from there.
    """
    given = kwargs.get("generation_config")
    if given is None:
        return kwargs | settings
    own = getattr(model, "generation_config", None)
    beside = {name: None for name, value in settings.items() if value is None and getattr(own, name, None) is not None}
    given = copy.deepcopy(given)
    given.update(**settings)
    return kwargs | beside | {"generation_config": given}


def check_names(model, names: Iterable[str]) -> None:
    """A misspelt option, found before a draft is loaded. transformers finds it later, or not at all, and suggests nothing.

    Raises:
        TypeError: a name that neither `generate` nor the model knows is close to that of an option.
    """
    for name in names:
        close = [] if name in CALL_OPTIONS else difflib.get_close_matches(name, CALL_OPTIONS, n=1, cutoff=CLOSE)
        if (
            close
            and not hasattr(GenerationConfig(), name)
            and not any(
                name in inspect.signature(function).parameters
                for function in (type(model).generate, model.prepare_inputs_for_generation, model.forward)
            )
        ):
            raise TypeError(f"`{name}` is no option: did you mean `{close[0]}`?")


def _refuse_without_effect(given: dict[str, Any], names, why: str, way_out: str = "") -> None:
    useless = [
        f"`{name}={given[name]!r}`" if isinstance(given[name], (int, float, str)) else f"`{name}`"
        for name in names
        if given[name] is not None
    ]
    if useless:
        raise ValueError(f"{', '.join(useless)} has no effect {why}: {way_out}leave it out.")


def _refuse_unsupported(call: _Call) -> None:
    for name in LOSSY_FIELDS:
        value = call.kwargs.get(name, call.configured(name))
        if value is not None:
            raise ValueError(
                f"`{name}={value}` changes the output's distribution, and speculation here is exact: leave it out."
            )
    cache = first_given(call.kwargs.get("cache_implementation"), call.configured("cache_implementation"))
    if cache not in (None, "dynamic", *STATIC_CACHES):
        raise ValueError(
            f"`cache_implementation={cache!r}` cannot be taken back when a draft is rejected: leave it out, or pass "
            "`draft_model=None` for plain decoding."
        )


def plain_kwargs(model, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call without a draft, as transformers' `generate` takes it."""
    own = (
        "draft_model",
        "assistant_model",
        "num_draft_tokens",
        *SWITCHES,
        "generator",
        "draft_tokenizer",
        "speculative_config",
    )
    plain = {name: value for name, value in kwargs.items() if name not in own}
    call = _Call(model, kwargs)
    # `draft_model=None` asks for plain decoding, whatever the generation_config names.
    return plain | {name: None for name in CONFIGURED_SOURCES if call.configured(name) is not None}
