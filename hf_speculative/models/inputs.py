"""The inputs that transformers' `generate` prepares before the first pass: ids, masks, positions, encoder outputs, cache."""

import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, GenerationMixin, PreTrainedModel, StaticCache
from transformers.utils import ModelOutput

from ..hf_compat import CACHE_ARGUMENTS, cache_argument, tree_map_only
from ..types import Batch
from .cached_model import device_of
from .rollback import copy_of
from .shallow import duplicate


class Prompt:
    """A call's prompt as the host knows it: read from the device once, for all that is decided before the first pass.

    Args:
        input_ids: `(batch, width)`.
        attention_mask: `(batch, width)`; `None`, or one of another shape, hides nothing.

    Attributes:
        history: the ids of each row without those that the mask hides.
        padding: how many it hides in each row.
        is_left_padded: it hides nothing but left padding, and none of the rows as a whole.
    """

    def __init__(self, input_ids: Tensor, attention_mask: Tensor | None):
        if attention_mask is None or attention_mask.shape != input_ids.shape:
            attention_mask = torch.ones_like(input_ids)
        ids, seen = torch.stack([input_ids.long(), attention_mask.to(input_ids.device).bool().long()]).tolist()
        self.history = [list(compress(*row)) for row in zip(ids, seen, strict=True)]
        self.padding = [row.count(0) for row in seen]
        ends = [row[pad:] for row, pad in zip(seen, self.padding, strict=True)]
        width = input_ids.shape[1]
        self.is_left_padded = all(map(all, ends)) and (width == 0 or all(ends))


#: inputs that any model gets beside ids
TEXT_INPUTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", "labels", *CACHE_ARGUMENTS}
#: inputs with the type of each column of the prompt, 0 for text
TOKEN_TYPES = {"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"}


@dataclass(frozen=True)
class Inputs:
    """One call, prepared by a model's own `generate`.

    Attributes:
        input_ids: `(batch, width)` the decoder's prompt; the width is 0 where all of it came as `inputs_embeds`.
        generation_config: the call's, completed.
        model_kwargs: all other inputs of the model's forward, an empty or filled cache included.
        is_decoder: the model has no encoder of its own, and may read what another one's gave.
    """

    input_ids: Tensor
    generation_config: GenerationConfig
    model_kwargs: dict[str, Any]
    is_decoder: bool = False

    @property
    def cache_name(self) -> str:
        """The keyword of the model's cache."""
        return cache_argument(self.model_kwargs)

    @property
    def cache(self):
        """The cache: empty, or of an earlier turn."""
        return self.model_kwargs.get(self.cache_name)

    @property
    def attention_mask(self) -> Tensor | None:
        """The mask of the decoder's prompt."""
        name = "decoder_attention_mask" if self.has_encoder and not self.is_decoder else "attention_mask"
        return self.model_kwargs.get(name)

    @property
    def has_encoder(self) -> bool:
        """Whether the model attends to what an encoder gave."""
        return "encoder_outputs" in self.model_kwargs

    @functools.cached_property
    def prompt(self) -> Prompt:
        """The decoder's prompt on the host."""
        return Prompt(self.input_ids, self.attention_mask)

    @property
    def others(self) -> list[str]:
        """Further inputs; `{}` and `False`, which transformers fills in, do not count."""
        given = {name: value for name, value in self.model_kwargs.items() if name not in TEXT_INPUTS}
        return [name for name, value in given.items() if value is not None and value is not False and value != {}]

    @property
    def has_media(self) -> bool:
        """Whether there are images, recordings or the like beside ids."""
        return bool(self.others) and "inputs_embeds" not in self.others and self.input_ids.shape[1] > 0

    @property
    def hides_columns(self) -> bool:
        """Whether the mask over an encoder-decoder model's prompt for the decoder hides any of it."""
        mask = self.model_kwargs.get("decoder_attention_mask")
        return mask is not None and not bool(mask.all())

    def fresh_kwargs(self, model: PreTrainedModel) -> dict[str, Any]:
        """`model_kwargs` with a fresh cache, so that the inputs can be used again."""
        cache = self.cache
        if isinstance(getattr(cache, "self_attention_cache", cache), StaticCache):
            # It is empty, and cannot be rolled back; tokens stay the same.
            own, other = (DynamicCache(config=model.config.get_text_config(decoder=True)) for _ in range(2))
            cache = EncoderDecoderCache(own, other) if model.config.is_encoder_decoder else own
        return self.model_kwargs | {self.cache_name: copy_of(cache)}


def inputs_for_draft(
    draft: PreTrainedModel, target: PreTrainedModel, inputs: Inputs, call: dict[str, Any], inputs_tensor: Tensor | None
) -> Inputs:
    """Prepare the same call by the draft's own `generate`.

    Args:
        inputs: of the target.
        call: the keyword arguments of the call.
        inputs_tensor: the target's main input: the prompt's ids, or its encoder's input.
    """
    num_copies = inputs.generation_config.num_return_sequences or 1  # expanded already, and expanded again below
    kwargs, prompt = inputs.model_kwargs, inputs.input_ids[::num_copies]
    given = _accepted(draft, call)
    if draft.config.is_encoder_decoder:
        if (mask := kwargs.get("attention_mask")) is not None:
            given["attention_mask"] = mask[::num_copies]
        given.pop("input_ids", None)
        given["decoder_input_ids"] = prompt
        if (mask := inputs.attention_mask) is not None and "decoder_attention_mask" in kwargs:
            given["decoder_attention_mask"] = mask[::num_copies]
        encoded = given.pop("encoder_outputs", None) is not None and misfit_of_encoder(draft, target, call) is None
        if encoded or _share_encoder(draft, target):
            given["encoder_outputs"] = _every(num_copies, kwargs["encoder_outputs"])
        elif target.main_input_name == draft.main_input_name or draft.main_input_name not in given:
            given = {name: value for name, value in given.items() if value is not inputs_tensor}  # under another name
            is_embedded = inputs_tensor is not None and inputs_tensor is call.get("inputs_embeds")
            given["inputs_embeds" if is_embedded else draft.main_input_name] = inputs_tensor
    else:
        given["input_ids"] = prompt
        for name in TOKEN_TYPES & given.keys():  # of an earlier turn in the target's cache; later columns are text
            given[name] = functional.pad(given[name], (0, prompt.shape[1] - given[name].shape[-1]))
        parameters, mask = inspect.signature(draft.forward).parameters, inputs.attention_mask
        if "attention_mask" in parameters:  # else transformers would infer it from ids that look like padding
            given["attention_mask"] = torch.ones_like(prompt) if mask is None else mask[::num_copies]
        # A decoder that reads the target's encoder, or none at all.
        if target.config.is_encoder_decoder and "encoder_outputs" in parameters:
            given["encoder_outputs"] = _every(num_copies, kwargs["encoder_outputs"])
    device = device_of(draft)
    given = tree_map_only(Tensor, lambda tensor: tensor.to(device), given)
    return _captured(draft, given, inputs.generation_config.max_length, num_copies)


def misfit_of_encoder(draft: PreTrainedModel, target: PreTrainedModel, call: dict[str, Any]) -> str | None:
    """The input of a call, `inputs_embeds` or `encoder_outputs`, whose width is not that of the draft's encoder, if any.

    With the same width, the draft reads the target's: drafts are made from their targets, embeddings included.
    """
    if not draft.config.is_encoder_decoder or _share_encoder(draft, target):
        return None
    encoder, embeds, outputs = draft.get_encoder(), call.get("inputs_embeds"), call.get("encoder_outputs")
    if embeds is not None and embeds.shape[-1] != encoder.get_input_embeddings().embedding_dim:
        return "inputs_embeds"
    if outputs is not None and outputs.last_hidden_state.shape[-1] != encoder.config.get_text_config().hidden_size:
        return "encoder_outputs"
    return None


def text_inputs(model: PreTrainedModel, batch: Batch) -> Inputs:
    """Prepare the prompts of `batch` by a decoder-only model's own `generate`."""
    width = batch.prompt_width
    mask = torch.arange(width, device=batch.tokens.device) >= batch.padding[:, None]
    given = {"input_ids": batch.tokens[:, :width], "attention_mask": mask.long()}
    return _captured(model, given, max_length=width + 1)


def prepared_inputs(model: PreTrainedModel, given: dict[str, Any]) -> Inputs:
    """Prepare the keywords `given` by a model's own `generate`."""
    return _captured(model, given, max_length=given.get("input_ids", torch.empty(1, 8)).shape[1] + 32)


def _captured(model: PreTrainedModel, given: dict[str, Any], max_length: int, num_copies: int = 1) -> Inputs:
    prepared: list[Inputs] = []

    def capture(model, input_ids, generation_config, logits_processor, stopping_criteria, **model_kwargs):
        is_decoder = not model.config.is_encoder_decoder
        prepared.append(Inputs(input_ids, generation_config, model_kwargs, is_decoder))

    # A shallow copy with an empty generation_config: settings of the model's own, such as beams, do not apply here.
    bare = duplicate(model)
    tokens = ("decoder_start_token_id", "bos_token_id", "eos_token_id")
    bare.generation_config = GenerationConfig(**{name: getattr(model.generation_config, name) for name in tokens})
    config = GenerationConfig(max_length=max_length, num_return_sequences=num_copies, do_sample=num_copies > 1, pad_token_id=0)
    with _noted_positions(model):
        # The class's own `generate`, past what is attached to the object and what a subclass does around it.
        GenerationMixin.generate(bare, **given, generation_config=config, custom_generate=capture)
    return prepared[0]


@contextmanager
def _noted_positions(model: PreTrainedModel):
    """The position offsets that models with 2-D positions store on themselves, for turns that continue a cache.

    Offsets of the user's own calls are kept where the model drafts for itself or is tried out.
    """
    noted = [(module, module.rope_deltas) for module in model.modules() if hasattr(module, "rope_deltas")]
    try:
        yield
    finally:
        for module, deltas in noted:
            module.rope_deltas = deltas


def note_positions(twin: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the offsets that a shallow copy stored on its modules to the model."""
    for one, original in zip(twin.modules(), model.modules(), strict=True):
        if hasattr(one, "rope_deltas"):
            original.rope_deltas = one.rope_deltas


def _accepted(draft: PreTrainedModel, call: dict[str, Any]) -> dict[str, Any]:
    """The inputs of `call` that the draft accepts as well: images, features, masks."""
    own = {"inputs", "inputs_embeds", "position_ids", *CACHE_ARGUMENTS, "use_cache", "decoder_input_ids", "labels"}
    names = inspect.signature(draft.forward).parameters.keys() - own - vars(GenerationConfig()).keys()
    return {name: value for name, value in call.items() if name in names and value is not None}


def _every(n: int, outputs: ModelOutput) -> ModelOutput:
    """Every n-th row of an encoder's outputs."""
    return type(outputs)({k: v[::n] if isinstance(v, Tensor) else v for k, v in outputs.items()})


def _share_encoder(draft: PreTrainedModel, target: PreTrainedModel) -> bool:
    """Whether the draft's encoder shares the target's weights in memory."""
    if not target.config.is_encoder_decoder:
        return False
    ours, theirs = draft.get_encoder(), target.get_encoder()
    places = [[weight.data_ptr() for weight in encoder.parameters()] for encoder in (ours, theirs)]
    return ours is theirs or (all(places[0]) and places[0] == places[1])  # 0: the weights are elsewhere, or sharded
