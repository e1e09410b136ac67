"""Drafts that come with the target: which they are, and what to refuse about them, all before the first forward."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, __version__

from ..drafting import DFlash, Gemma4Assistant
from ..interfaces import Drafter
from ..models import ATTENTION, LAYER_TYPES, choose, fits_early_exit
from ..models.shallow import decoder_layers, is_patched
from .checks import check_model, check_positive_int, check_ragged
from .configuration import Options

OTHERWISE = "use `draft_model=` or `prompt_lookup_num_tokens=` instead, or leave it out for plain decoding"


def prepare(model: PreTrainedModel, options: Options) -> Options:
    """Check where the drafts of a call come from; the options with the number of tokens that a drafter was made for."""
    if options.early_exit is not None:
        check_ragged(model, choose(model), "assistant_early_exit")
        check_early_exit(model, options.early_exit)
    if options.use_mtp:
        check_ragged(model, choose(model), "use_mtp")
        return _with_length(options, "use_mtp", check_mtp(model))
    draft = options.draft_model
    if draft is None:
        return options
    check_draft_model(model, draft)
    made_for = tied_drafter(draft)
    if made_for is not None:
        check_ragged(model, choose(model), type(draft).__name__)
    if options.speculation_type not in (None, "dflash"):
        raise ValueError(
            f"`speculation_type={options.speculation_type!r}` is not known: give 'dflash' or leave it out."
        )
    if options.speculation_type == "dflash" and made_for is not DFlash:
        raise ValueError(
            f"`speculation_type='dflash'` needs a DFlash draft, but `draft_model` is a {type(draft).__name__}: leave it out."
        )
    return _with_length(options, "draft_model", draft.config.block_size - 1) if made_for is DFlash else options


def part_of_target(options: Options) -> str | None:
    """The option of a call whose drafts run parts of the target on their own; `None` if there is none."""
    parts = {
        "assistant_early_exit": options.early_exit is not None,
        "use_mtp": bool(options.use_mtp),
        "draft_model": options.draft_model is not None and tied_drafter(options.draft_model) is not None,
    }
    return next((name for name, is_used in parts.items() if is_used), None)


def _with_length(options: Options, argument: str, longest: int) -> Options:
    """A drafter that proposes up to `longest` tokens does so by default; more are refused."""
    if options.length_is_default:
        return replace(options, num_draft_tokens=longest)
    if options.num_draft_tokens > longest:
        raise ValueError(
            f"`num_draft_tokens={options.num_draft_tokens}`: the draft that `{argument}` names proposes at most {longest} "
            f"tokens a round: give 1 to {longest}, or leave it out."
        )
    return options


def check_draft_model(model: PreTrainedModel, draft: PreTrainedModel) -> None:
    """A draft for this target: a causal language model, or one made to read the target's states."""
    made_for = tied_drafter(draft)
    if made_for is None:
        return check_model(draft, "draft_model")
    name, config = type(draft).__name__, draft.config.get_text_config(decoder=True)
    attention = config._attn_implementation
    if attention not in ATTENTION:
        raise ValueError(
            f"`draft_model` uses attn_implementation={attention!r}, which takes no explicit mask: load it with "
            "attn_implementation='sdpa'."
        )
    target = model.config.get_text_config(decoder=True)
    if made_for is DFlash:
        layers = draft.config.target_layer_ids
        misfit = max(layers) >= target.num_hidden_layers or draft.config.hidden_size != target.hidden_size
        needs = f"a target of hidden size {draft.config.hidden_size} with more than {max(layers)} layers"
    else:
        kinds = set(getattr(target, "layer_types", None) or [])
        size = draft.config.backbone_hidden_size
        misfit = target.hidden_size != size or not set(config.layer_types) <= kinds
        needs = (
            f"a Gemma 4 target of hidden size {size} with layers of type {', '.join(sorted(set(config.layer_types)))}"
        )
    if misfit:
        raise ValueError(
            f"`draft_model`: {name} was made for {needs}, the target is a {type(model).__name__} of hidden size "
            f"{target.hidden_size} with {target.num_hidden_layers} layers: use the draft that belongs to it."
        )
    return None


def tied_drafter(draft: PreTrainedModel) -> type[DFlash] | type[Gemma4Assistant] | None:
    """The drafter for a model that cannot decode on its own; `None` for a causal language model."""
    if type(draft).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant")):
        return Gemma4Assistant
    return DFlash if getattr(draft, "main_input_name", None) == "noise_embeds" else None


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
            f"`assistant_early_exit={exit_layer}`: {type(model).__name__} cannot be run in two halves that give its logits: "
            f"{OTHERWISE}."
        )


def check_mtp(model: PreTrainedModel) -> int:
    """Load the model's MTP layers; how many they are."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if not getattr(config, "num_mtp_layers", None):
        raise ValueError(f"`use_mtp=True`: {name} has no MTP layers (`config.num_mtp_layers`): {OTHERWISE}.")
    if not hasattr(_mtp_class(), "forward_layer"):
        raise ValueError(
            f"`use_mtp=True` needs a transformers whose MtpModel runs layer by layer, as 5.23 does; this is {__version__}: "
            f"update it, or {OTHERWISE}."
        )
    kinds = set(getattr(model.config.get_mtp_config(), "layer_types", None) or ["full_attention"])
    if not kinds <= LAYER_TYPES:
        raise ValueError(
            f"`use_mtp=True`: {name} has MTP layers of type {', '.join(sorted(kinds - LAYER_TYPES))}, whose state cannot be "
            f"rolled back: {OTHERWISE}."
        )
    if model not in _heads and not model.config.name_or_path:
        raise ValueError(
            f"`use_mtp=True`: this {name} does not come from a checkpoint, which holds the MTP layers: load it by "
            "`from_pretrained`, or leave it out for plain decoding."
        )
    return len(mtp_heads(model).layers)


_heads: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()


def mtp_heads(model: PreTrainedModel) -> PreTrainedModel:
    """The MTP layers of the model's checkpoint, loaded once a model, beside its last layer."""
    if model not in _heads:
        layers = model.get_submodule(decoder_layers(model) or "model.layers")
        device = next(layers[-1].parameters()).device
        _heads[model] = _mtp_class().from_pretrained(model, device_map={"": device}).eval()
    return _heads[model]


def _mtp_class():
    from transformers import modeling_layers  # older versions have no MtpModel there

    return getattr(modeling_layers, "MtpModel", None)


def check_hidden_states_known(cache, drafter: Drafter) -> None:
    """A cache from outside holds keys and values only."""
    if cache is not None and cache.get_seq_length() and drafter.hidden_layers:
        raise ValueError(
            f"`past_key_values` holds {cache.get_seq_length()} tokens without the hidden states that {type(drafter).__name__} "
            "reads: leave it out and pass the whole text."
        )
