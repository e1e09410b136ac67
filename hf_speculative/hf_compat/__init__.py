"""What of transformers and torch is private or moves between versions, each under a name of ours.

A rename there breaks this room alone, and tests/test_hf_compat.py says what. Layers of draft heads lie in `layers.py`, base
classes of Trainer in `training.py`, those of files in `compiled.py`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map, tree_map_only
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionLayer
from transformers.generation import logits_process
from transformers.generation.continuous_batching.continuous_api import ContinuousMixin
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import output_capturing

#: a context without modes of torch's dispatcher, such as fake tensors
without_modes = _disable_current_modes
#: keywords under which models take a cache; transformers' own take it under the first, "cache" since 5.24
CACHE_ARGUMENTS = tuple(dict.fromkeys((*ALL_CACHE_NAMES, "past_key_values")))
CACHE = CACHE_ARGUMENTS[0]

#: defaults of assisted generation, which `Seq2SeqTrainer` writes into a model's generation config after its first batch
ABOUT_DRAFTS = {name: value for name, value in GenerationConfig._get_default_generation_params().items() if "assistant" in name}


# ---- generate


def cache_argument(kwargs: Mapping[str, Any]) -> str:
    """The keyword of the cache among `kwargs`, or those that a model takes."""
    return next((name for name in CACHE_ARGUMENTS if kwargs.get(name) is not None), CACHE)


def pad_token(config: GenerationConfig) -> Tensor | None:
    """The token that a prepared call fills up with."""
    return config._pad_token_tensor


def set_value(config: GenerationConfig, name: str) -> Any:
    """A setting of a config; `None` where nothing but transformers' defaults says it, filled in for all of `ABOUT_DRAFTS`."""
    value = getattr(config, name, None)
    is_filled_in = name in ABOUT_DRAFTS and all(getattr(config, one, None) is not None for one in ABOUT_DRAFTS)
    return None if is_filled_in and value == ABOUT_DRAFTS[name] else value


def mask_length(config: GenerationConfig, default: int) -> int:
    """Columns of a static cache's mask, of a prepared call."""
    return getattr(config, "_mask_length", default)


def has_own_sampling_loop(model: PreTrainedModel) -> bool:
    """A model class brings a loop of its own in place of `generate`'s."""
    return type(model)._sample is not GenerationMixin._sample


def prefill(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, kwargs: dict[str, Any]):
    """The prompt's pass, as plain `generate` makes it."""
    return model._prefill(input_ids, config, kwargs)


def updated_kwargs(model: PreTrainedModel, outputs, kwargs: dict[str, Any], **more) -> dict[str, Any]:
    """A model's keywords for the next pass."""
    return model._update_model_kwargs_for_generation(outputs, kwargs, **more)


def is_given_by_user(cache) -> bool:
    """A prepared call's cache is the user's own `past_key_values`."""
    return bool(getattr(cache, "_is_user_defined", False))


def response_parser(template: dict[str, Any], prefix: str, tools: list[dict] | None):
    """Finds thoughts and tool calls in a text as it comes, after a prompt. Needs transformers 5.23."""
    from transformers.utils.chat_parsing import ResponseParser

    return ResponseParser(template, prefix=prefix, tools=tools)


# ---- models


def attention_name(config: PretrainedConfig | None) -> str:
    """Which attention a model computes with: "sdpa", "eager", ...; empty if it does not say."""
    return getattr(config, "_attn_implementation", None) or ""


def set_attention_name(config: Any, name: str) -> None:
    """Of a config or a layer that transformers leaves without one."""
    config._attn_implementation = name


def set_own_attention(config: PretrainedConfig, name: str) -> None:
    """The same without writing to the configs inside."""
    config._attn_implementation_internal = name


def is_stateful(model: PreTrainedModel) -> bool:
    """A model has a state that cannot be cropped."""
    return bool(getattr(model, "_is_stateful", False))


def device_mesh(model: PreTrainedModel | None):
    """The mesh that a model was loaded with; `None` without one."""
    return getattr(model, "_device_mesh", None)


def gguf_weights(path: str, model: PreTrainedModel) -> dict[str, Tensor]:
    """The dequantised weights of a GGUF file, under the names of `model`."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    return load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]


def tied_weights(model: PreTrainedModel) -> set[str]:
    """Names of weights that others are tied to."""
    return set(model._tied_weights_keys or ())


def loads(auto_class: Any, config: PretrainedConfig) -> bool:
    """An auto class knows a model for this config."""
    return type(config) in auto_class._model_mapping


def project_to_logits(model, states: Tensor) -> Tensor:
    """Logits of an MTP layer's states."""
    return model._project_to_logits(states)


def compile_on_all_devices(settings: Any) -> None:
    """transformers compiles on accelerators alone, unless it is told otherwise."""
    settings._compile_all_devices = True


# ---- accelerate and PEFT


def placement_hook(module: nn.Module):
    """accelerate's hook of a module that is offloaded or spread over devices; `None` without one."""
    return getattr(module, "_hf_hook", None)


def has_placement_hook(module: nn.Module) -> bool:
    """The hook is this very module's."""
    return "_hf_hook" in vars(module)


def hooked_forward(module: nn.Module):
    """The `forward` that accelerate's hook is around."""
    return vars(module)["_old_forward"]


def set_hooked_forward(module: nn.Module, forward) -> None:
    module._old_forward = forward


#: attributes of PEFT's layers that say which adapter is on, and whether any is
ACTIVE_ADAPTER, DISABLE_ADAPTERS = "_active_adapter", "_disable_adapters"


def adapters_of(layer: Any) -> set[str]:
    """Names of the adapters that a layer of PEFT's has."""
    return set(layer._get_available_adapters())


# ---- torch


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def is_compiled(module: nn.Module) -> bool:
    """`module.compile()` was called."""
    return module._compiled_call_impl is not None
