"""The multi-token prediction layers of the target's checkpoint: `use_mtp=True`."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, __version__

from ...drafting import Mtp
from ...interfaces import Drafter
from ...models import LAYER_TYPES
from ...models.shallow import decoder_layers
from ..checks import OTHERWISE
from ..source import BuildContext, DraftSource


@dataclass(frozen=True)
class MtpSource(DraftSource):
    use_mtp: bool

    argument, method, runs_target = "use_mtp", "mtp", True
    reads_states = True

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[bool, ...]:
        return (True,)

    def check(self, model: PreTrainedModel) -> None:
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
                f"`use_mtp=True`: {name} has MTP layers of type {', '.join(sorted(kinds - LAYER_TYPES))}, whose state cannot "
                f"be rolled back: {OTHERWISE}."
            )
        if model not in _heads and not model.config.name_or_path:
            raise ValueError(
                f"`use_mtp=True`: this {name} does not come from a checkpoint, which holds the MTP layers: load it by "
                "`from_pretrained`, or leave it out for plain decoding."
            )
        mtp_heads(model)

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return len(mtp_heads(model).layers)

    def cost_of_token(self, model: PreTrainedModel) -> float:
        return 1 / model.config.get_text_config(decoder=True).num_hidden_layers

    def drafter(self, call: BuildContext) -> Drafter:
        return Mtp(mtp_heads(call.model))


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
