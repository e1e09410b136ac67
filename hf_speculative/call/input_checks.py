"""Checks of a call's inputs before its first forward: prompts, masks, embeddings, caches."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from transformers import Cache, CacheLayerMixin, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ..drafting.source import DraftSource
from ..hf_compat import mask_length
from ..models import Inputs, misfit_of_encoder
from .configuration import Options


def check_ids(kwargs: dict) -> None:
    """Check the prompt as it was given.

    Raises:
        TypeError: it is no tensor.
    """
    for name in ("inputs", "input_ids"):
        value = kwargs.get(name)
        if value is None or isinstance(value, Tensor):
            continue
        first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
        way_out = "pass a tensor of shape (batch, length), `torch.tensor([ids])`"
        if isinstance(first, str):
            way_out = 'encode text, `**tokenizer(text, return_tensors="pt")`, or use `generate_batches`'
        elif isinstance(value, Mapping):
            way_out = "pass what it holds by name, `generate(model, **encoded)`"
        raise TypeError(f"`{name}` is of type {type(value).__name__}, and token ids are a tensor: {way_out}.")


def check_inputs(options: Options, model: PreTrainedModel) -> None:
    """Check the inputs, without reading from the device or running an encoder.

    Raises:
        TypeError: ids that are no whole numbers.
        ValueError: an empty batch, or what the draft's encoder cannot read.
    """
    call, draft = options.generate_kwargs, options.source.draft_model
    names = ["input_ids", "decoder_input_ids", *(["inputs"] if model.main_input_name == "input_ids" else [])]
    for name in (*names, "inputs_embeds"):
        value = call.get(name)
        if not isinstance(value, Tensor):
            continue
        if name in names and (value.is_floating_point() or value.is_complex()):
            raise TypeError(f"`{name}` is of type {value.dtype}: ids are whole numbers, pass `{name}.long()`.")
        if len(value) == 0:
            raise ValueError(f"`{name}` has shape {tuple(value.shape)}, an empty batch: give at least one prompt.")
    misfit = draft is not None and misfit_of_encoder(draft, model, call)
    if misfit and all(call.get(name) is None for name in ("inputs", "input_ids")):
        where = "instead" if misfit == "inputs_embeds" else "as well"
        reads = f"the draft's encoder ({type(draft).__name__}) reads"
        raise ValueError(f"`{misfit}` has another width than {reads}: pass `input_ids=` {where}.")


def check_healing(model, kwargs: dict, ids: Tensor | None, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Check the inputs for `token_healing`.

    Raises:
        ValueError: no tokenizer, no ids, or padding that only an attention mask can tell.
    """
    if tokenizer is None:
        raise ValueError("`token_healing=True` needs the text: pass `tokenizer=` as well.")
    if ids is None or model.config.is_encoder_decoder:
        raise ValueError("`token_healing=True` heals prompts of token ids of a decoder-only model: leave it out.")
    if tokenizer.pad_token_id is None:
        raise ValueError("`token_healing=True` needs padding, and `tokenizer` has none: set `tokenizer.pad_token`.")
    if kwargs.get("attention_mask") is None and tokenizer.pad_token_id in ids:
        raise ValueError("`token_healing=True` changes the prompt's padding: pass `attention_mask=` as well.")


def check_healed(healed: Tensor, ids: Tensor) -> None:
    """Healing decodes the prompt and encodes it again.

    Raises:
        ValueError: that gave another number of tokens.
    """
    if healed.shape != ids.shape:
        shapes = f"{tuple(healed.shape)} ids for {tuple(ids.shape)}"
        raise ValueError(f"`token_healing=True` encodes anew, and got {shapes}: strip the prompt, or leave it out.")


def check_prompt(model: PreTrainedModel, inputs: Inputs) -> None:
    """Check the prompt of a decoder-only model that reads ids alone.

    Raises:
        ValueError: it is empty, has a mask of another shape, or ids that a model of text alone has no embedding for.
    """
    input_ids, mask = inputs.input_ids, inputs.attention_mask
    if model.config.is_encoder_decoder or inputs.model_kwargs.get("inputs_embeds") is not None:
        return
    if input_ids.shape[1] == 0:
        raise ValueError("the prompt is empty: a draft needs at least one token, the model's bos token for example.")
    if mask is not None and mask.shape != input_ids.shape:
        shapes = f"`attention_mask` has shape {tuple(mask.shape)}, the prompt {tuple(input_ids.shape)}"
        raise ValueError(f"{shapes}: pass the whole sequence, and a mask as wide, beside `past_key_values` as well.")
    for row, ids in enumerate(inputs.prompt.history):
        check_known_ids(model, ids, f"row {row} of the prompt")


def check_known_ids(model: PreTrainedModel, ids: Sequence[int], what: str) -> None:
    """Ids of a model of text alone; others put images and the like in the place of ids that they have no embedding for.

    Raises:
        ValueError: there is no embedding for one.
    """
    num_ids = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if num_ids is None or model.config.sub_configs or not ids:
        return
    for token in (min(ids), max(ids)):
        if not 0 <= token < num_ids:
            known = f"{type(model).__name__} has embeddings for 0 to {num_ids - 1}"
            raise ValueError(f"{what} holds the id {token}, but {known}: encode it with the model's own tokenizer.")


def check_cache(cache, inputs: Inputs, source: DraftSource) -> None:
    """Check the user's own cache.

    Raises:
        ValueError: it cannot be taken back, or does not know its length; the ids are not those of the whole sequence; or drafts
            read hidden states, which it does not hold.
    """
    own = getattr(cache, "self_attention_cache", cache)
    if isinstance(own, Cache) and (type(own) is not DynamicCache or getattr(own, "offloading", False)):
        raise ValueError(f"`past_key_values` is of type {type(own).__name__}: pass a DynamicCache, not offloaded.")
    if isinstance(own, Cache) and own.layers and not any(isinstance(layer, CacheLayerMixin) for layer in own.layers):
        raise ValueError("`cache_params` does not say how many tokens it holds: leave it out, and pass the whole text.")
    length, width, mask = cache.get_seq_length(), inputs.input_ids.shape[1], inputs.attention_mask
    whole = mask_length(inputs.generation_config, width) if mask is None else mask.shape[1]
    if length and (length >= width or whole != width):
        counts = f"`past_key_values` holds {length} tokens and the ids are {width}"
        raise ValueError(f"{counts}: pass the whole sequence; only the rest is fed.")
    if length and source.reads_states:
        raise ValueError(f"`past_key_values` lacks the states that {source.name} reads: leave it out, and pass the whole text.")
