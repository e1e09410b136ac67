"""Refuse models that no cache of ours fits: the argument, the reason, the way out."""

from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import has_own_sampling_loop
from .inputs import Inputs
from .probe import fits_universal
from .verified_types import has_tested_modules

OTHERWISE = "use `draft_model=` or `prompt_lookup_num_tokens=` instead, or leave it out for plain decoding"
REFUSED_TYPES = {
    "rwkv": "reads several tokens at once as if its recurrent state were empty, so that no pass verifies a draft",
    "csm_depth_decoder_model": "has an output layer for each position, a codebook each, and as many positions",
}


def unwrap(model, argument: str) -> PreTrainedModel:
    """A LoRA-style wrapper's own model, adapters included; anything else as it is."""
    if model is not None:
        check_type(model, argument, nn.Module)
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):
        if getattr(model.active_peft_config, "is_prompt_learning", False):
            reason = "prepends learned prompts, which the cache cannot hold: merge it, or use a LoRA adapter"
            raise ValueError(f"`{argument}`, of type {type(model).__name__}, {reason}.")
        return model.get_base_model()
    return model


def check_model(model, argument: str) -> None:
    """Refuse a model that no cache of ours fits.

    Raises:
        TypeError: it is no transformers model.
        ValueError: with the reason and the way out.
    """
    check_type(model, argument)
    reason = speculation_unsupported_reason(model)
    if reason is not None:
        raise ValueError(f"`{argument}`: {type(model).__name__} {reason}: {_way_out(argument)}.")


def check_type(model, argument: str, kind: type[nn.Module] = PreTrainedModel) -> None:
    """Refuse an object that is no transformers model, or no module: the name of a target, for example."""
    if not isinstance(model, kind):
        way_out = "a transformers model" + (" that is loaded" if argument == "model" else ", or the name of one")
        raise TypeError(f"`{argument}` is of type {type(model).__name__}: pass {way_out}.")


def _way_out(argument: str) -> str:
    return "use another draft" if argument == "draft_model" else "pass `draft_model=None` for plain decoding"


def check_universal(model, inputs: Inputs, argument: str) -> None:
    """Refuse a model whose logits change when its cache is rolled back on this prompt; tried once for each model."""
    if not fits_universal(model, inputs, is_draft=argument == "draft_model"):
        where, way_out = "", _way_out(argument)
        if inputs.hides_columns:
            where, way_out = " under a `decoder_attention_mask` that hides columns", f"leave the mask out, or {way_out}"
        differs = f"computes different logits for several tokens at once than for one at a time{where}{quantised_inputs(model)}"
        raise ValueError(f"`{argument}`: {type(model).__name__} {differs}, so a draft cannot be verified exactly: {way_out}.")


def quantised_inputs(model: PreTrainedModel) -> str:
    """What to add where logits depend on the shape of a pass, or are no numbers, if layers may quantise their inputs."""
    reason = ", as of layers that quantise their inputs (int8 weights alone are exact), or of weights that are nan"
    return "" if has_tested_modules(model) else reason


def speculation_unsupported_reason(model) -> str | None:
    """Why no cache of ours can roll back `model`; `None` if no reason is known."""
    if not model.can_generate():
        return "has no `generate`"
    around = getattr(model.prepare_inputs_for_generation, "__self__", None)  # PEFT puts its own in the model's place
    if getattr(getattr(around, "active_peft_config", None), "is_prompt_learning", False):
        return f"is run by a {type(around).__name__}, which prepends learned prompts that the cache cannot hold"
    if has_own_sampling_loop(model):
        return "generates in a loop of its own (`_sample`), several codebooks a step for example, which drafts would replace"
    return REFUSED_TYPES.get(model.config.model_type)
