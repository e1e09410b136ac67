"""Inputs of `generate_batches`: settings for every row, and prompts of several kinds."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..tokenizers.chat import ids_of
from .configuration import OF_STEPS, first_given, setting_of, with_settings
from .input_checks import check_known_ids
from .option_table import ROWS

#: options of `generate` that have no meaning for rows that come and go
INPUTS = ("inputs", "input_ids", "inputs_embeds", "attention_mask", "position_ids", "decoder_input_ids")
MEANINGLESS = {
    **dict.fromkeys(INPUTS, "prompts come as `prompts`"),
    **dict.fromkeys(("return_dict_in_generate", *OF_STEPS), "a Completion has a row's tokens, text and statistics"),
    "past_key_values": "each row starts with its prompt",
    "streamer": "iterate over the results, with `in_order=False` as they finish",
    "num_return_sequences": "give a prompt as often as you want it continued",
    "max_length": "it would count padding: give `max_new_tokens`",
    "min_length": "it would count padding: give `min_new_tokens`",
    "max_time": "it would end rows that have just begun: stop iterating instead",
    "token_healing": "it changes prompts, which are handed back as they came",
}
#: those that have to be reset in the model's own generation config as well
CHANGES_ROWS = ("num_return_sequences", "max_time", "token_healing")

#: defaults of transformers' continuous batching that differ from those of its `generate`
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1}


def settings_of_rows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, kwargs: dict) -> dict[str, Any]:
    """The keywords of each call of `generate`.

    Raises:
        ValueError: an option has no meaning here, or nothing says how long a row may get.
    """
    for name, way_out in MEANINGLESS.items():
        value = setting_of(model if name in CHANGES_ROWS else None, kwargs, name)
        is_off = value is None or (isinstance(value, int) and value == (name == "num_return_sequences"))
        if not is_off:
            shown = f"={value!r}" if isinstance(value, (int, float)) else ""
            raise ValueError(f"`{name}{shown}` has no meaning for rows that come and go: {way_out}.")
    if setting_of(model, kwargs, "max_new_tokens") is None:
        raise ValueError("nothing says how long a row may get: give `max_new_tokens`.")
    eos = setting_of(model, kwargs, "eos_token_id")
    eos = next((id for id in ids_of(eos) if id >= 0), None)
    pad = first_given(setting_of(model, kwargs, "pad_token_id"), getattr(tokenizer, "pad_token_id", None), eos, 0)
    return kwargs | {"tokenizer": tokenizer, "pad_token_id": pad, "return_dict_in_generate": False}


def settings_of_requests(model: PreTrainedModel, config: GenerationConfig, max_new_tokens: int | None) -> dict:
    """Keywords of `generate` that mean what `config` means to `generate_batch`: what it leaves open is off."""
    others = (*ROWS, "transformers_version", "use_cache", "bos_token_id", "pad_token_id")
    names = [name for name in vars(config) if not name.startswith(("_", "output_")) and name not in others]
    open_names = [name for name in names if getattr(config, name) is None]
    own = model.generation_config
    off = {name: OFF.get(name) for name in open_names if name in OFF or getattr(own, name, None) is not None}
    off |= {"max_length": None, "num_return_sequences": 1, "continuous_batching_config": None}
    off |= {"max_new_tokens": first_given(max_new_tokens, config.max_new_tokens)}
    return with_settings(model, {"generation_config": config}, off)


def check_prompts(prompts) -> None:
    """Refuse what is no sequence of prompts, and would be iterated over by mistake."""
    if isinstance(prompts, (str, Mapping)):
        raise TypeError(f"`prompts` is one {type(prompts).__name__}: pass a list, or any other iterable, of prompts.")
    if not isinstance(prompts, Iterable):
        raise TypeError(f"`prompts` is of type {type(prompts).__name__}: pass an iterable of prompts.")


def prompt_ids(prompt, index: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """The ids of one prompt, without padding.

    Args:
        prompt: a text; messages for the tokenizer's chat template; ids, as a list or `(length,)` tensor; or a mapping with
            `input_ids` and maybe `attention_mask` of one row.

    Raises:
        ValueError, TypeError: naming `index`, where it is empty, too long, nothing of the kind, or has unknown ids.
    """
    ids = _ids(prompt, index, tokenizer)
    if not ids:
        raise ValueError(f"prompt {index} is empty: it needs at least one token, the model's bos token for example.")
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and len(ids) > limit:
        raise ValueError(f"prompt {index} has {len(ids)} tokens, but the model has {limit} positions: shorten it.")
    check_known_ids(model, ids, f"prompt {index}")
    return ids


def _ids(prompt, index: int, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    is_chat = isinstance(prompt, list) and bool(prompt) and all(isinstance(message, Mapping) for message in prompt)
    if isinstance(prompt, str) or is_chat:
        if tokenizer is None:
            raise ValueError(f"prompt {index} is {'messages' if is_chat else 'a text'}: pass `tokenizer=`, or ids.")
        if isinstance(prompt, str):
            return tokenizer(prompt)["input_ids"]
        try:
            return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
        except TemplateError as error:  # a role that the template does not take, say
            raise ValueError(f"prompt {index} does not fit the tokenizer's chat template: {error}.") from error
    if isinstance(prompt, Mapping):
        return _unpadded(prompt, index)
    if isinstance(prompt, Tensor):
        if prompt.ndim != 1 or prompt.is_floating_point():
            raise ValueError(f"prompt {index} is a {prompt.dtype} tensor of shape {tuple(prompt.shape)}: pass 1-D ids.")
        return prompt.tolist()
    if isinstance(prompt, (list, tuple)) and all(isinstance(token, int) for token in prompt):
        return list(prompt)
    kinds = "a text, a list of messages, a list or 1-D tensor of ids, or a dict with `input_ids`"
    raise TypeError(f"prompt {index} is of type {type(prompt).__name__}: pass {kinds}.")


def _unpadded(prompt: Mapping, index: int) -> list[int]:
    unknown = sorted(prompt.keys() - {"input_ids", "attention_mask", "token_type_ids"})
    if unknown or "input_ids" not in prompt:
        keys = ", ".join(map(repr, sorted(prompt)))
        raise ValueError(f"prompt {index} has keys {keys}: give `input_ids` and `attention_mask`, or use `generate`.")
    given = torch.as_tensor(prompt["input_ids"])
    if given.ndim > 1 and len(given) != 1:
        raise ValueError(f"prompt {index} holds {len(given)} rows: give each as a prompt of its own.")
    ids = given.flatten().tolist()
    mask = torch.as_tensor(prompt.get("attention_mask", [1] * len(ids))).flatten().tolist()
    kept = [position for position, is_seen in enumerate(mask) if is_seen]
    if len(mask) != len(ids) or (kept and kept[-1] - kept[0] + 1 != len(kept)):
        raise ValueError(f"prompt {index} has an `attention_mask` that hides more than padding: leave it out.")
    return [ids[position] for position in kept]


def padded(prompts: list[list[int]], pad: int, left: bool) -> tuple[Tensor, Tensor]:
    """Prompts as one batch: ids and attention mask, `(batch, longest)` each."""
    rows = [torch.tensor(prompt) for prompt in prompts]
    joined = partial(pad_sequence, batch_first=True, padding_side="left" if left else "right")
    return joined(rows, padding_value=pad), joined([torch.ones_like(row) for row in rows])
