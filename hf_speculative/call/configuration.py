"""Settings: of generation configs, of `SpeculativeConfig`, which users write, and `Options`, the resolved ones of a call."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..drafting.source import DraftSource
from ..interfaces import Rule, Schedule
from ..models import artifacts, device_of, is_recurrent
from ..models.execution import EAGER, Execution
from .option_table import BITWISE, CONFIG, IN_CALL, ROWS, checked, documented

#: settings that ask for outputs of each step
OF_STEPS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def first_given(*values):
    """The first value that is not `None`."""
    return next((value for value in values if value is not None), None)


def generation_configs(model, kwargs: dict[str, Any]) -> list[GenerationConfig]:
    """The generation configs of the call and the model, if there are any."""
    configs = (kwargs.get("generation_config"), getattr(model, "generation_config", None))
    return [config for config in configs if config is not None]


def setting_of(model, kwargs: dict[str, Any], name: str) -> Any:
    """A setting of a call: its keyword's, `None` too, else its generation_config's, else the model's own."""
    if name in kwargs:
        return kwargs[name]
    return first_given(*(getattr(config, name, None) for config in generation_configs(model, kwargs)))


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
    others = {name: value for name, value in kwargs.items() if name not in settings}
    return others | beside | {"generation_config": given}


@documented(CONFIG)
@dataclass(frozen=True)
class SpeculativeConfig:
    """Settings for `attach`, for a call, or for `save_pretrained`: length, source, verification, execution.

    Fields that are left open have the defaults of docs/options.md.

    Raises:
        ValueError, TypeError: a value out of range or of another type; `num_draft_tokens` beside a `schedule`.
    """

    num_draft_tokens: int | None = None
    schedule: Schedule | None = None
    tree_top_k: int | None = None
    tree_depth: int | None = None
    corpus: Any = None
    suffix_decoding_max_cached_requests: int | None = None
    draft_window: int | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    vocabulary_mapping: str | None = None
    reproducible: bool | str | None = None
    lanes: int | None = None
    rule: Rule | str | None = None
    draft_sample_method: str | None = None
    allow_lossy: bool | None = None
    generator: torch.Generator | None = None
    optimize: bool | str | None = None
    learn: Any = None

    def __post_init__(self):
        for name, value in vars(self).items():
            object.__setattr__(self, name, checked(name, value))
        if self.schedule is not None and self.num_draft_tokens is not None:
            raise ValueError("`num_draft_tokens` has no effect beside `schedule`: leave one of them out.")

    def over(self, other: SpeculativeConfig) -> SpeculativeConfig:
        """This config, with open fields taken from `other`."""
        chosen = {name: first_given(value, getattr(other, name)) for name, value in vars(self).items()}
        if self.num_draft_tokens is not None:
            chosen["schedule"] = None  # a given length overrides the other config's schedule
        elif self.schedule is not None:
            chosen["num_draft_tokens"] = None
        return SpeculativeConfig(**chosen)


def as_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name as keywords of `generate`: settings that are no keyword go into a `speculative_config`."""
    names = [name for name in options if name in ROWS and name not in IN_CALL]
    keywords = {name: value for name, value in options.items() if name not in names}
    settings = SpeculativeConfig(**{name: options[name] for name in names})
    if settings == SpeculativeConfig():
        return keywords
    given = keywords.get("speculative_config") or SpeculativeConfig()
    return keywords | {"speculative_config": settings.over(given)}


def execution_of(optimize: bool | str | None, device: torch.device) -> Execution:
    """What `optimize` means on `device`; `None` and False are the model's own eager passes."""
    is_auto = optimize == "auto"
    if not optimize or (is_auto and (device.type not in ("cpu", "cuda") or os.environ.get(artifacts.FOLDER) == artifacts.OFF)):
        return EAGER
    if device.type == "cuda":
        return Execution(captures=True)
    return Execution(has_kernel=True, compile=optimize)


@dataclass(frozen=True)
class Options:
    """The resolved options of one call. `options["name"]` is the given value of an option that is no source of drafts."""

    source: DraftSource
    num_draft_tokens: int
    schedule_name: str
    config: SpeculativeConfig
    #: by name; `None` where none was given
    values: Mapping[str, Any] = field(default_factory=dict)
    #: names of those that the call itself gives
    in_call: frozenset[str] = frozenset()
    #: no number of draft tokens was given: a drafter made for a number takes at most its own
    length_is_default: bool = False
    #: rows that run together, the others wait until rows are done; all of them by default
    rows_at_once: int | None = None
    #: what goes on to transformers' generate
    generate_kwargs: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def execution(self, model: PreTrainedModel) -> Execution:
        """How the passes of the target `model` run."""
        execution = execution_of(self.config.optimize, device_of(model))
        # A file that is there from some call on would bring other bits, and compiled recurrences round by where a pass begins.
        is_eager = self.is_bitwise and (execution.compile == "auto" or is_recurrent(model))
        return replace(execution, compile=False) if is_eager else execution

    @property
    def is_bitwise(self) -> bool:
        """Whether logits of the target have the same bits with any draft."""
        return self.config.reproducible == BITWISE
