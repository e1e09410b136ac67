"""Decode an attached model plainly on its compiled passes, by rounds without a draft, where these are faster."""

import inspect
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..drafting.nothing import Nothing
from ..models import has_compiled_passes, is_tested_multimodal
from ..schedules import Constant
from . import checks
from .configuration import Options, SpeculativeConfig
from .generation_settings import setting_of
from .optimize import execution_of
from .preparation import checked

#: without a draft there are no costs to measure
NO_DRAFT = {"draft_model": Nothing(), "speculative_config": SpeculativeConfig(schedule=Constant(0))}
#: keywords that such a call may have beside settings of `GenerationConfig`; others need transformers' own steps
TAKEN = {
    "inputs",
    "input_ids",
    "attention_mask",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "streamer",
    "tokenizer",
}
#: inputs of models of images or recordings that are none
NO_MEDIA = {"inputs_embeds", "position_ids", "past_key_values", "labels"}
#: outputs of steps, which plain decoding computes for rows that have ended as well
OF_STEPS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def on_own_passes(
    model: PreTrainedModel, plain_generate, kwargs: dict[str, Any], config: SpeculativeConfig | None
) -> tuple[Options, dict[str, Any]] | None:
    """The options of a plain call, and what transformers' `generate` is given, if the model's passes are compiled.

    Args:
        config: what was attached; `None` if nothing was.
    """
    if config is None or not config.optimize:
        return None
    target = checks.unwrap(model, "model")
    execution = execution_of(config.optimize, target.device)
    if not execution.compile or execution.captures:
        return None
    known = TAKEN | vars(GenerationConfig()).keys()
    if is_tested_multimodal(target):
        known |= inspect.signature(target.forward).parameters.keys() - NO_MEDIA
    if any(name not in known for name, value in kwargs.items() if value is not None):
        return None
    if any(setting_of(model, kwargs, name) for name in OF_STEPS):
        return None
    if not has_compiled_passes(target, execution.compile):
        return None
    own = SpeculativeConfig(schedule=Constant(0), reproducible=True, optimize=config.optimize)
    call = kwargs | NO_DRAFT | {"speculative_config": own}
    try:
        options, prepared = checked(model, plain_generate, call, None, None)
    except (TypeError, ValueError):  # what a draft cannot be combined with, plain decoding can
        return None
    return None if options is None else (options, prepared)
