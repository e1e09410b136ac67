"""Settings of a call of `generate`, from keywords and generation configs."""

import copy
from typing import Any

from transformers import GenerationConfig

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
    """A setting of a call: its keyword's, else its generation_config's, else the model's own; `None` if none says any."""
    configs = generation_configs(model, kwargs)
    return first_given(kwargs.get(name), *(getattr(config, name, None) for config in configs))


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
