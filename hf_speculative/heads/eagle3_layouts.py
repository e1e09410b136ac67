"""The layouts in which EAGLE-3 heads are published: speculators', and the one of EAGLE, SpecForge and ModelOpt."""

from typing import Any, ClassVar

from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from .eagle3 import Eagle3Model
from .eagle3_config import Eagle3Config
from .layout import HeadFiles, Layout, Published, dtype_of, members, wrong_reason

#: what only configs of EAGLE-3 heads have
EAGLE_FIELDS = ("draft_vocab_size", "truncated_vocab_size", "eagle_config")
EAGLE_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
#: the first of the target's states that is read, where ids count outputs of layers, and where they count `hidden_states`
FIRST_OUTPUT, FIRST_STATE = 1, 2
#: norms that EAGLE-3.1 and NVIDIA's heads add
NORMS = ("norm_before_fc", "fc_norm", "norm_output")
#: fields of its layers that the EAGLE layout has beside the head's own
LAYER_FIELDS = LlamaConfig.__annotations__.keys() - {
    *("attention_dropout", "pretraining_tp", "rope_parameters", "tie_word_embeddings", "use_cache")
}
ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta")


class Eagle3Layout(Layout):
    """What both have in common."""

    models: ClassVar = {Eagle3Config: Eagle3Model}

    def renamed(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
        found = {_renamed(name): tensor for name, tensor in tensors.items()}
        size = config.transformer_layer_config.vocab_size
        if config.has_own_ids and "d2t" in found and "t2d" not in found and not wrong_reason(found["d2t"], size):
            found["t2d"] = members(found["d2t"], size)
        return found


class SpeculatorsEagle3Layout(Eagle3Layout):
    """speculators' (`speculators_model_type`), which vLLM reads; `RedHatAI/*-speculator.eagle3`."""

    name = "speculators"
    speculators_types = ("eagle3", "peagle")

    def config(self) -> Eagle3Config:
        names = {_renamed(name) for name in self.files.tensors}
        return Eagle3Config(**self.files.settings | {"has_embed_tokens": "embed_tokens.weight" in names})


class EagleLayout(Eagle3Layout):
    """EAGLE's, SpecForge's and ModelOpt's: a Llama config and one layer; `yuhuili/EAGLE3-*`, `nvidia/*-Eagle3`.

    Its `midlayer.` is the first of the layers, and the residual is the state before its norm.
    """

    name = "eagle"

    @classmethod
    def recognises(cls, files: HeadFiles) -> bool:
        if "speculators_model_type" in files.fields:
            return False
        architectures = set(files.fields.get("architectures") or ())
        if architectures.isdisjoint(EAGLE_ARCHITECTURES) and files.fields.keys().isdisjoint(EAGLE_FIELDS):
            return False
        return "layers.0.hidden_norm.weight" in {_renamed(name) for name in files.tensors}

    def config(self) -> Eagle3Config:
        fields, names = self.files.fields, {_renamed(name) for name in self.files.tensors}
        own = fields.get("eagle_config") or {}
        layers = {name: fields[name] for name in (*LAYER_FIELDS, *ROPE_FIELDS) if fields.get(name) is not None}
        kind = "qwen3" if "layers.0.self_attn.q_norm.weight" in names else "llama"
        size = fields.get("draft_vocab_size") or fields.get("truncated_vocab_size") or fields["vocab_size"]
        ids = own.get("eagle_aux_hidden_state_layer_ids", fields.get("eagle_aux_hidden_state_layer_ids"))
        return Eagle3Config(
            transformer_layer_config=layers | {"model_type": kind, "tie_word_embeddings": False},
            draft_vocab_size=size,
            **{name: bool(own.get(name, fields.get(name, False))) for name in (*NORMS, "norm_before_residual")},
            target_hidden_size=fields.get("target_hidden_size"),
            eagle_aux_hidden_state_layer_ids=_states_read(ids),
            has_embed_tokens="embed_tokens.weight" in names,
            dtype=fields.get("dtype", fields.get("torch_dtype")),
        )

    @classmethod
    def unsupported(cls, config: PreTrainedConfig) -> dict[str, Any]:
        layers = config.transformer_layer_config
        return {
            "it drafts all tokens in one pass (P-EAGLE)": config.is_parallel,
            f"its layers are of type {layers.model_type}": layers.model_type != "llama",
            f"it has {layers.num_hidden_layers} layers": layers.num_hidden_layers != 1,
            "its residual is the state after the norm (`norm_before_residual`)": config.norm_before_residual,
            "its first layer id would be read as that of a layer's output": (
                (config.eagle_aux_hidden_state_layer_ids or [0])[0] == FIRST_OUTPUT
            ),
        }

    @classmethod
    def published(cls, config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
        layers = config.transformer_layer_config.to_dict()
        own: dict[str, Any] = {name: True for name in NORMS if getattr(config, name)}
        if ids := config.eagle_aux_hidden_state_layer_ids:
            outputs = [index - 1 for index in ids] if ids[0] == FIRST_STATE else list(ids)
            own |= {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": outputs}
        fields = {name: layers[name] for name in LAYER_FIELDS if layers.get(name) is not None}
        fields |= _rope(layers.get("rope_parameters") or {})
        fields |= {"architectures": [EAGLE_ARCHITECTURES[0]], "model_type": "llama", "tie_word_embeddings": False}
        fields |= {"draft_vocab_size": config.draft_vocab_size, "torch_dtype": dtype_of(tensors)}
        if config.target_hidden_size is not None:
            fields["target_hidden_size"] = config.target_hidden_size
        if own:
            fields["eagle_config"] = own
        return fields, {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}


def _renamed(name: str) -> str:
    """A tensor by its name in `Eagle3Model`; NeMo puts `model.` before some."""
    name = name.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _states_read(ids: list[int] | None) -> list[int] | None:
    """Ids of an EAGLE config as indices into `hidden_states`.

    SpecForge and ModelOpt count outputs of layers, EAGLE and vLLM the states before them. SGLang takes ids for the former where
    the first is 1, and so it is done here. Its default [1, L/2 - 1, L - 4] is EAGLE's [2, L/2, L - 3] (sglang PR#25454).
    """
    return [index + 1 for index in ids] if ids and ids[0] == FIRST_OUTPUT else ids


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """As it was written before transformers 5, which is what readers of this layout know."""
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    is_plain = scaling.get("rope_type", "default") == "default"
    return {"rope_theta": parameters.get("rope_theta", 10000.0), "rope_scaling": None if is_plain else scaling}
