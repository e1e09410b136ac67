"""Decode an attached model plainly on its compiled or captured passes, by rounds without a draft, where these are faster."""

import inspect
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..drafting.wrapped import Nothing
from ..hf_compat import CACHE_ARGUMENTS
from ..models import is_tested_multimodal
from ..models.execution import has_fast_passes
from ..schedules import Constant
from . import checks
from .configuration import OF_STEPS, Options, SpeculativeConfig, execution_of, setting_of
from .preparation import checked

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
