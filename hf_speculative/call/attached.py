"""The `generate` of an attached model, and the way of one call: with a draft, or plainly."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from ..drafting.wrapped import Nothing
from ..hf_compat import CACHE_ARGUMENTS
from ..models import device_of, is_tested_multimodal, linears, modes_of_a_call
from ..models.execution import has_fast_passes
from ..schedules import Constant
from . import checks
from .configuration import OF_STEPS, Options, SpeculativeConfig, execution_of, first_given, setting_of
from .decoding import Declined, SpeculativeDecoding
from .option_table import DRAFTS
from .preparation import checked


def own_generate(model):
    """The object's own `generate`, set in place of its class's: an `Attached`, another library's, or `None`."""
    return vars(model).get("generate")


#: patches of transformers in force, the newest last: each has a `draft_model` and a `config`
patches: list[Any] = []
#: the model whose call goes on without a draft, whatever a patch of transformers says
plain_model: ContextVar[Any] = ContextVar("plain_model", default=None)


def attached_to(model) -> tuple[Any, SpeculativeConfig | None]:
    """The draft and the settings that `attach` gave a model, else those of the newest patch; `(None, None)` without."""
    attached = own_generate(model)
    return (attached.draft_model, attached.config) if isinstance(attached, Attached) else of_patch(model)


def of_patch(model) -> tuple[Any, SpeculativeConfig | None]:
    """The draft and the settings of the newest patch; `(None, None)` without, and in a call that goes on plainly."""
    found = patches[-1:]  # at once, since other threads may undo theirs
    return (found[0].draft_model, found[0].config) if found and plain_model.get() is not model else (None, None)


def use_kernel_of(model, kwargs: Mapping[str, Any]) -> None:
    """Let an attached model multiply as a call with these keywords says."""
    if isinstance(attached := own_generate(model), Attached):
        attached.use_kernel(kwargs.get("speculative_config"))


class Attached:
    """`model.generate` of a model that `attach` gave a draft. Copies and pickles along with the model."""

    def __init__(self, model: PreTrainedModel, draft_model: Any, config: SpeculativeConfig):
        self.model, self.draft_model, self.config = model, draft_model, config

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.plain_generate)

    @property
    def plain_generate(self):
        return type(self.model).generate.__get__(self.model)

    @property
    def models(self) -> list[PreTrainedModel]:
        """The target, and the draft model if there is one."""
        draft, _ = DRAFTS.split(self.draft_model)
        return [model for model in (self.model, draft) if isinstance(model, PreTrainedModel)]

    def use_kernel(self, in_call: SpeculativeConfig | None = None) -> None:
        """Let linear layers of both models multiply by our kernel, or by torch, as a call with these settings says."""
        optimize = first_given(getattr(in_call, "optimize", None), self.config.optimize)
        for model in self.models:
            has_kernel = execution_of(optimize, device_of(model)).has_kernel
            (linears.use_kernel if has_kernel else linears.drop_kernel)(model)

    def drop_kernel(self) -> None:
        for model in self.models:
            linears.drop_kernel(model)

    @torch.compiler.disable  # torch.compile takes `plain_generate` for the model's `generate`, which is this
    def __call__(self, *args, **kwargs):
        self.use_kernel(kwargs.get("speculative_config"))
        if (given := kwargs.get("custom_generate")) is not None:
            if not isinstance(given, (str, SpeculativeDecoding)):  # ours: a repository's, and under `torch.compile`
                warnings.warn("nothing is drafted in this call: its `custom_generate` decodes it.", stacklevel=2)
            return self.plain_generate(*args, **kwargs)
        return decode(self.model, self.plain_generate, args, kwargs, self.draft_model, self.config)


def plain_generate_of(model):
    """The `generate` that prepares a call: the model's own, without an attached one."""
    own = own_generate(model)
    # A repository's `custom_generate/` puts a partial there, and may be what calls here.
    is_custom = isinstance(own, functools.partial) and own.keywords.get("model") is model
    return type(model).generate.__get__(model) if is_custom or isinstance(own, Attached) else model.generate


def decode(model, plain_generate, args: tuple, kwargs: dict[str, Any], attached_draft=None, attached_config=None):
    """Decode one call through transformers' hook; by transformers alone if nothing asks for a draft or compiled passes.

    Args:
        args, kwargs: of the model's own `generate`.
    """
    signature = inspect.signature(plain_generate)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        signature = inspect.signature(GenerationMixin.generate.__get__(model))  # PEFT's, and others', hand theirs on to it
    positional = signature.bind_partial(*args).arguments
    if twice := positional.keys() & kwargs.keys():
        raise TypeError(f"generate got multiple values for {', '.join(sorted(twice))}")
    options, kwargs = checked(model, plain_generate, positional | kwargs, attached_draft, attached_config)
    prepared, is_plain = kwargs, options is None
    if options is None:
        options, prepared = on_own_passes(model, plain_generate, kwargs, attached_config)
    if options is None:
        return _plainly(model, plain_generate, kwargs)
    decoding = SpeculativeDecoding(options, rows_go_on=True, is_plain=is_plain)
    try:
        with modes_of_a_call(model, options.source.draft_model):
            return plain_generate(**prepared, custom_generate=decoding)
    except Declined as error:
        if not is_plain:
            warnings.warn(f"nothing is drafted in this call: {error.__cause__}", stacklevel=3)
            kwargs |= {name: options[name] for name in ("streamer", "synced_gpus") if options[name] is not None}
        return _plainly(model, plain_generate, kwargs)


def _plainly(model, plain_generate, kwargs: dict[str, Any]):
    token = plain_model.set(checks.unwrap(model, "model"))
    try:
        return plain_generate(**kwargs)
    finally:
        plain_model.reset(token)


#: keywords that such a call may have beside settings of `GenerationConfig`; others need transformers' own steps
TAKEN = {"inputs", "input_ids", "attention_mask", "generation_config", "streamer", "tokenizer"}
TAKEN |= {"logits_processor", "stopping_criteria"}
#: inputs of models of images or recordings that are none
NO_MEDIA = {"inputs_embeds", "position_ids", *CACHE_ARGUMENTS, "labels"}


def on_own_passes(
    model: PreTrainedModel, plain_generate, kwargs: dict[str, Any], config: SpeculativeConfig | None
) -> tuple[Options | None, dict[str, Any]]:
    """The options of a plain call on compiled or captured passes, `None` without any, and the keywords for transformers.

    Args:
        config: what was attached; `None` if nothing was.
    """
    if config is None or not config.optimize:
        return None, kwargs
    target = checks.unwrap(model, "model")
    execution = execution_of(config.optimize, target.device)
    if not (execution.compile or execution.captures):
        return None, kwargs
    known = TAKEN | vars(GenerationConfig()).keys()
    if is_tested_multimodal(target):
        known |= inspect.signature(target.forward).parameters.keys() - NO_MEDIA
    is_known = all(name in known for name, value in kwargs.items() if value is not None)
    # Plain decoding computes outputs of steps for rows that have ended as well.
    wants_steps = any(setting_of(model, kwargs, name) for name in OF_STEPS)
    if not is_known or wants_steps or not has_fast_passes(target, execution):
        return None, kwargs
    own = SpeculativeConfig(schedule=Constant(0), reproducible=True, optimize=config.optimize)
    try:
        asked = kwargs | {"draft_model": Nothing(), "speculative_config": own}
        return checked(model, plain_generate, asked, None, None)
    except (TypeError, ValueError):  # what a draft cannot be combined with, plain decoding can
        return None, kwargs
