"""Drafts from what the target already has: the checks, as in `checks.py`, all before the first forward."""

from __future__ import annotations

from transformers import PreTrainedModel

from .checks import check_positive_int
from .models.probe import fits_early_exit
from .models.shallow import decoder_layers, is_patched


def check_early_exit(model: PreTrainedModel, exit_layer: int) -> None:
    """Can the model draft with its first `exit_layer` layers?"""
    check_positive_int("assistant_early_exit", exit_layer)
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if exit_layer >= num_layers:
        raise ValueError(
            f"`assistant_early_exit={exit_layer}` leaves nothing to verify with: the model has {num_layers} layers, give 1 to "
            f"{num_layers - 1}."
        )
    if decoder_layers(model) is None or is_patched(model) or not fits_early_exit(model, exit_layer):
        raise ValueError(
            f"`assistant_early_exit={exit_layer}`: {type(model).__name__} cannot be run in two halves that give its logits: use "
            "`draft_model=` or `prompt_lookup_num_tokens=` instead, or leave it out for plain decoding."
        )
