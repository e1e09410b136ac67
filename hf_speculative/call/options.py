"""Resolve the options of a call.

The order is: the call, what was attached, the target's generation_config, the draft's generation_config, our default. Nothing
is dropped in silence: an option that would have no effect raises.
"""

import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from transformers import GenerationConfig

from ..drafting.source import DraftSource
from ..drafting.wrapped import Nothing
from ..grammar.processor import with_grammar
from ..hf_compat import set_value
from ..schedules import Constant
from . import option_table as table, sources
from .checks import check_settings, unwrap
from .configuration import Options, SpeculativeConfig, first_given, generation_configs, setting_of, with_settings
from .option_table import HANDED_ON, IN_CALL, OPTIONS, REFUSED, ROWS, Option, checked
from .option_types import shown

DEFAULT_NUM_DRAFT_TOKENS = 5
#: options about the draft length, the schedule's name last
LENGTH_OPTIONS = ("num_draft_tokens", "assistant_confidence_threshold", "num_assistant_tokens_schedule")
#: options that say how to draft: guesses join no draft beside one of them
HOW_TO_DRAFT = (*LENGTH_OPTIONS, "schedule", "tree_top_k", "tree_depth")
#: options that also hold for bitwise calls without a draft
OF_PASSES = ("speculative_config", "optimize", "generator")


class _Call:
    """The options that a call gives.

    Attributes:
        given: options by their own names, without those that are `None`.
        spelled: the names under which they were given.
        others: the other keywords.
        config: its `speculative_config`.
        configs: generation configs, its own and the target's.
    """

    def __init__(self, model, kwargs: dict[str, Any]):
        self.others = {name: value for name, value in kwargs.items() if name not in IN_CALL}
        self.given: dict[str, Any] = {}
        self.spelled: dict[str, str] = {}
        for name in IN_CALL:
            own, value = ROWS[name].name, kwargs.get(name)
            if value is None:
                continue
            spelled, known = self.spelled.setdefault(own, name), self.given.setdefault(own, value)
            if known is not value and known != value:
                raise ValueError(f"`{spelled}` and `{name}` mean the same but differ: give one of them.")
        in_call = checked("speculative_config", self.given.get("speculative_config"))
        self.config: SpeculativeConfig = first_given(in_call, SpeculativeConfig())
        if self.config == SpeculativeConfig():  # which says nothing
            self.given.pop("speculative_config", None)
        self.configs = generation_configs(model, kwargs)

    def source(self, name: str, configs: Iterable[GenerationConfig]) -> Any:
        """The source of drafts that the call or `configs` ask for; `None` if they ask for none."""
        value = first_given(self.given.get(name), getattr(self.config, name, None))
        if value is None and name in table.CONFIGURED_SOURCES:
            value = configured(name, configs)
        value = checked(name, value)
        return None if value is False else value

    @property
    def said(self) -> dict[str, Any]:
        """Options that it gives, by keyword or in its config."""
        return {name: value for name, value in (vars(self.config) | self.given).items() if value is not None}

    def settings(self) -> SpeculativeConfig:
        """Settings of the call: keywords with a field in `SpeculativeConfig`, then its own config."""
        own = {name: value for name, value in self.given.items() if table.CONFIG in ROWS[name].places}
        return SpeculativeConfig(**own).over(self.config)

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Refuse those of `names` that the call gives, by keyword or in its config."""
        said = self.said
        useless = [name for name in names if name in said]
        if len(useless) > 1 and "speculative_config" in useless:  # whose fields are named
            useless.remove("speculative_config")
        if useless:
            listed = ", ".join(shown(self.spelled.get(name, name), said[name]) for name in useless)
            raise ValueError(f"{listed} has no effect {why}.")

    def refuse_for(self, source: DraftSource, config: SpeculativeConfig) -> None:
        """Refuse options without an effect on this source, in the call or in the resolved `config`."""
        own = source.options()
        for name, value in (vars(config) | self.given).items():
            if value is None or name in own or ROWS[name].without_draft != REFUSED:
                continue
            if ways := sources.asked_with(name):
                why = f"on drafts by `{source.name}`, only on those by {' or '.join(f'`{one}`' for one in ways)}"
                raise ValueError(f"{shown(self.spelled.get(name, name), value)} has no effect {why}: leave it out.")
        if source.num_draft_tokens is not None:
            why = f"beside `{source.argument}`, which says how many tokens to draft: leave one of them out"
            self.refuse(LENGTH_OPTIONS[:2], why)
        if not source.ends_early:
            self.refuse(["assistant_confidence_threshold"], f"on drafts by `{source.name}`: leave it out")


def configured(name: str, configs: Iterable[GenerationConfig]) -> Any:
    """The value of an option in the first of `configs` that has one."""
    return first_given(*(getattr(config, own, None) for config in configs for own in ROWS[name].names))


def read_options(model, kwargs: dict, attached_draft, attached_config: SpeculativeConfig, load) -> Options | None:
    """Resolve a call's options; `None` if nothing asks for speculation.

    Args:
        kwargs: all of the call's arguments, by name.
        attached_draft: what `attach` was given as `draft_model`, loaded.
        attached_config: what `attach` was given as `config`.
        load: turns the name of a draft into the model.
    """
    call = _Call(model, kwargs)
    argument, value, attached = _source(call, kwargs, attached_draft, attached_config)
    if argument is None:
        is_bitwise = call.settings().over(attached_config).reproducible == table.BITWISE
        refused = [option.name for option in OPTIONS if option.without_draft == REFUSED and not option.is_source]
        kept = OF_PASSES if is_bitwise else ()
        call.refuse([n for n in refused if n not in kept], "without a draft: give `draft_model=`, or leave it out")
        if not is_bitwise:
            return None
        argument, value, attached = "draft_model", Nothing(), without_draft(attached_config)
    if call.others.pop("custom_generate", None) is not None:
        raise ValueError("`custom_generate` and a draft are two decoding methods for one call: give one of them.")
    check_settings(call.others, call.configs)
    call.given = {name: checked(call.spelled[name], one) for name, one in call.given.items()}
    if call.config.schedule is not None:
        call.refuse(LENGTH_OPTIONS, "beside `speculative_config.schedule`: leave one of them out")
    elif call.given.keys() & LENGTH_OPTIONS:
        attached = replace(attached, schedule=None)  # the call's own word comes first
    config = call.settings().over(attached)
    target, grammar = unwrap(model, "model"), call.given.get("grammar")
    generate_kwargs = with_grammar(target, _for_transformers(model, kwargs, call), grammar, config.tokenizer)
    draft = load(value, target) if argument == "draft_model" else None
    drafts_own = getattr(table.DRAFTS.split(draft)[0], "generation_config", None)
    levels = {table.GENERATION_CONFIG: call.configs, table.DRAFTS_OWN: [] if drafts_own is None else [drafts_own]}
    values = {option.name: _value(option, config, call.given, levels) for option in OPTIONS if not option.is_source}
    in_call = frozenset(call.said)
    source = sources.source_of(argument, first_given(draft, value), values | {"in_call": in_call})
    call.refuse_for(source, config)
    is_free = _is_one_text(target, call.others, config) and all(values[name] is None for name in HOW_TO_DRAFT)
    length, chosen = _how_much(source, values), source.for_model(target)
    chosen = sources.with_guesses(chosen, target, grammar is not None, is_free)
    return Options(chosen, config=config, values=values, in_call=in_call, generate_kwargs=generate_kwargs, **length)


def _is_one_text(target, kwargs: dict[str, Any], config: SpeculativeConfig) -> bool:
    """Whether the call is for one text, whose tokens are the same whatever is drafted, on a CPU, where that was measured.

    There copies bring most: a batch goes on until its last row is done, and drafts that are drawn are kept more often.
    """
    if target.config.is_encoder_decoder or target.device.type != "cpu":
        return False
    ids = first_given(kwargs.get("input_ids"), kwargs.get("inputs"))
    is_sampled, copies = (setting_of(target, kwargs, name) for name in ("do_sample", "num_return_sequences"))
    return getattr(ids, "shape", (0,))[0] * (copies or 1) == 1 and not (is_sampled and not config.reproducible)


def _source(
    call: _Call, kwargs: dict[str, Any], attached_draft, attached: SpeculativeConfig
) -> tuple[str | None, Any, SpeculativeConfig]:
    """The keyword that asks for the source of drafts, its value, and the attached settings that still count.

    `None` as the keyword if there is no source.
    """
    is_refused = "draft_model" not in call.given and any(name in kwargs for name in ROWS["draft_model"].names)  # as `None`
    own_configs = [config for config in call.configs if config is kwargs.get("generation_config") and not is_refused]
    named = {name: value for name in table.SOURCES if (value := call.source(name, own_configs)) is not None}
    if len(named) > 1:
        raise ValueError(f"{' and '.join(f'`{n}`' for n in named)} are two sources of drafts for one call: give one.")
    if named:
        ((argument, value),) = named.items()
        if argument != "draft_model" or value != attached_draft:  # settings of the attached source are about it alone
            attached = replace(attached, **dict.fromkeys(sources.SETTINGS_OF_ONE))
        return argument, value, attached
    if is_refused:
        return None, None, SpeculativeConfig()
    if attached_draft is not None:
        return "draft_model", attached_draft, attached
    found = {name: call.source(name, call.configs) for name in table.CONFIGURED_SOURCES}
    default = ("draft_model", "auto") if call.given.get("grammar") is not None else (None, None)
    return *next(((name, value) for name, value in found.items() if value is not None), default), attached


def without_draft(attached: SpeculativeConfig) -> SpeculativeConfig:
    """Attached settings for rounds in which nothing is drafted, bit for bit as in those that draft."""
    of_drafts = dict.fromkeys([*sources.SETTINGS_OF_ONE, "num_draft_tokens"])
    return replace(attached, **of_drafts | {"schedule": Constant(0)})


def _how_much(source: DraftSource, values: dict[str, Any]) -> dict[str, Any]:
    """The number of draft tokens, and the schedule."""
    length = first_given(source.num_draft_tokens, values["num_draft_tokens"])
    # An explicit number is used as it is; a source's number is an upper bound.
    default_schedule = "adaptive" if length is None or source.num_draft_tokens is not None else "constant"
    name = first_given(values["num_assistant_tokens_schedule"], default_schedule)
    default = source.most_tokens if name == "adaptive" else DEFAULT_NUM_DRAFT_TOKENS
    length_is_default, length = length is None, first_given(length, default)
    return {"num_draft_tokens": length, "schedule_name": name, "length_is_default": length_is_default}


def _value(option: Option, config: SpeculativeConfig, given: dict, levels: dict[str, list[GenerationConfig]]) -> Any:
    """The value of an option in the call or what was attached, else in the first generation config that may set it."""
    nearer = first_given(getattr(config, option.name, None), given.get(option.name))
    if nearer is not None:
        return nearer
    configs = [one for place, of_place in levels.items() if place in option.places for one in of_place]
    found = ((own, set_value(one, own)) for one in configs for own in option.names)
    return next((option.type.checked(f"generation_config.{own}", one) for own, one in found if one is not None), None)


def _for_transformers(model, kwargs: dict[str, Any], call: _Call) -> dict[str, Any]:
    """The keywords for transformers' `generate`, without those handled here, which would switch it to another mode."""
    own = [name for name, option in ROWS.items() if table.GENERATION_CONFIG in option.places]
    said = [name for name in own if any(getattr(config, name, None) is not None for config in call.configs)]
    hidden: dict[str, Any] = dict.fromkeys(said)
    given = kwargs.get("generation_config")
    if kwargs.get("use_cache") is None and getattr(given, "use_cache", None) is None:
        hidden["use_cache"] = True  # some models' configs switch it off, which changes no token
    return with_settings(model, call.others, hidden)


def check_names(model, names: Iterable[str]) -> None:
    """Refuse misspelt options before a draft is loaded; transformers finds them later, or not at all.

    Raises:
        TypeError: a name that neither `generate` nor the model knows is close to that of an option.
    """
    config = GenerationConfig()
    for name in names:
        reason = None if name in IN_CALL or hasattr(config, name) else table.unknown_reason(name)
        functions = (type(model).generate, model.prepare_inputs_for_generation, model.forward)
        if reason and not any(name in inspect.signature(function).parameters for function in functions):
            raise TypeError(reason)


def plain_kwargs(model, kwargs: dict[str, Any], attached: SpeculativeConfig | None = None) -> dict[str, Any]:
    """The keywords of a call without a draft for transformers' `generate`."""
    plain = {n: value for n, value in kwargs.items() if n not in IN_CALL or ROWS[n].without_draft == HANDED_ON}
    if attached is not None and attached.tokenizer is not None:
        plain.setdefault("tokenizer", attached.tokenizer)
    grammar = checked("grammar", plain.pop("grammar", None))
    plain = with_grammar(unwrap(model, "model"), plain, grammar, plain.get("tokenizer"))
    configs = generation_configs(model, kwargs)
    # `draft_model=None` asks for plain decoding, whatever the generation_config names.
    return plain | {name: None for name in table.CONFIGURED_SOURCES if configured(name, configs) is not None}
