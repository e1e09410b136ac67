"""Choose the cache of a model, once, before the first pass."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..hf_compat import is_stateful
from .attention import mask_unsupported_reason
from .cached_model import image_layers, num_cached_of_image
from .inputs import Inputs
from .masks import ATTENTION_TYPES, RECURRENT_TYPES
from .positions import takes_positions
from .probe import fits_multimodal, fits_ragged
from .stepped import calls, unsteppable_reason

LAYER_TYPES = set(ATTENTION_TYPES) - RECURRENT_TYPES
#: types of layers without a cache
NO_MIXER = {"moe", "mlp"}
#: outputs of passes that only the universal path keeps
OUTPUTS = {"output_hidden_states": "the hidden states", "output_attentions": "the attentions"}


@dataclass(frozen=True)
class Path:
    """The kind of cache a model gets.

    Attributes:
        name: "ragged", the fast path, in which each row of a batch has its own length, or "universal", transformers' own.
        reason: why it is not the ragged one.
        way_out: an option of the call to leave out, if that is the reason.
        has_media: on the ragged path: the prompt is more than ids, see `MultimodalModel`.
    """

    name: str
    reason: str | None = None
    way_out: str | None = None
    has_media: bool = False


def choose(model: PreTrainedModel, is_draft: bool = False) -> Path:
    """The path of `model` for prompts of token ids; one that the tests do not cover is tried on random tokens, once."""
    if model.config.is_encoder_decoder:  # what its encoder gave for a call decides, see `choose_for`
        return Path("universal", "is an encoder-decoder model")
    reason = ragged_unsupported_reason(model)
    if reason is None and not fits_ragged(model, is_draft):
        reason = "computes different logits through a ragged cache than in plain steps"
    return Path("ragged") if reason is None else Path("universal", reason)


def choose_for(model: PreTrainedModel, inputs: Inputs, takes_media: bool = True, is_draft: bool = False) -> Path:
    """The path of `model` for one call.

    Args:
        takes_media: `MultimodalModel` will do; else prompts of more than ids take the universal path.
    """
    reason = _more_than_ids_reason(inputs)
    if reason is None and num_cached_of_image(model, inputs.cache):
        reason = "goes on from a cache that holds an image"
    if reason is None:
        return _asked_for(inputs) or choose(model, is_draft)
    if not takes_media or not _has_media_alone(model, inputs):
        return Path("universal", reason)
    fits = ragged_unsupported_reason(model) is None if inputs.has_encoder else choose(model, is_draft).name == "ragged"
    is_ragged = fits and fits_multimodal(model, inputs, is_draft)
    return Path("ragged", has_media=True) if is_ragged else Path("universal", reason)


def _has_media_alone(model: PreTrainedModel, inputs: Inputs) -> bool:
    """Whether nothing but images, recordings or the like keeps a call from the ragged path."""
    if not inputs.has_media or _asked_for(inputs) is not None or image_layers(model):
        return False
    return inputs.prompt.is_left_padded and (inputs.cache is None or inputs.cache.get_seq_length() == 0)


def _asked_for(inputs: Inputs) -> Path | None:
    """The universal path where an option of the call needs transformers' own passes; else `None`."""
    config = inputs.generation_config
    if config.prefill_chunk_size is not None:
        way_out = f"leave `prefill_chunk_size={config.prefill_chunk_size}` out"
        return Path("universal", "reads its prompt in chunks", way_out)
    for name, what in OUTPUTS.items():
        if name in inputs.others or (config.return_dict_in_generate and getattr(config, name)):
            return Path("universal", f"is asked for {what} of each step", f"leave `{name}=True` out")
    return None


def _more_than_ids_reason(inputs: Inputs) -> str | None:
    """The input of a call that only transformers' own preparation can feed; `None` without any."""
    if others := [name for name in inputs.others if name not in OUTPUTS]:
        return f"is given {', '.join(others)}"
    if not inputs.prompt.is_left_padded:
        return "is given an `attention_mask` that hides more than left padding"
    positions = inputs.model_kwargs.get("position_ids")
    if positions is not None and not _is_plain(positions, inputs):
        return "is given positions of its own"
    return None


def _is_plain(positions: torch.Tensor, inputs: Inputs) -> bool:
    """Whether positions count from each row's first token that is not padding."""
    width = inputs.input_ids.shape[1]
    if positions.shape not in (inputs.input_ids.shape, (1, width)):
        return False
    padding = torch.tensor(inputs.prompt.padding, device=positions.device)
    plain = torch.arange(width, device=positions.device) - padding[:, None]
    return bool((positions.expand_as(plain) == plain)[plain >= 0].all())


def ragged_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why the ragged cache does not fit `model`, by its class and config alone; `None` if no reason is known."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if "local" in (getattr(config, "attention_layers", None) or []):
        return "has local attention that counts its window from the cache's end"
    if not kinds <= LAYER_TYPES | RECURRENT_TYPES | NO_MIXER:
        return f"has layers of type {', '.join(sorted(kinds - LAYER_TYPES - RECURRENT_TYPES - NO_MIXER))}"
    if (is_stateful(model) or kinds & RECURRENT_TYPES) and (reason := unsteppable_reason(model)):
        return reason
    attends = bool(kinds - {"linear_attention", "conv"} - NO_MIXER)
    if attends and (not takes_positions(model) or calls(model, "get_query_offset")):
        return "takes positions from its cache's length rather than from `position_ids`"
    return mask_unsupported_reason(model) if attends else None
