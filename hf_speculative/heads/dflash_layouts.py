"""The layouts in which DFlash heads are published: z-lab's, which JetSpec and DeepSpec share, and speculators'."""

from typing import Any, ClassVar

from torch import Tensor
from transformers import AutoConfig, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedConfig, Qwen3Config

from .dflash import MARKOV_HEADS, DFlashHead, DFlashHeadConfig
from .eagle3_config import SPECULATORS_VERSION, speculators_config
from .layout import Layout, Published, dtype_of, first_reason, members

#: tensors that have other names in transformers' class
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
#: fields of the layers
LAYER_FIELDS = (MuseGlimmerAssistantConfig.__annotations__.keys() & Qwen3Config.__annotations__.keys()) - {
    *("attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("head_dim", "layer_types", "sliding_window"),  # which some files do not say
}
#: fields of what heads add, by the same names in all layouts, and speculators' values where the file leaves them out
CONVOLUTION = {"conv_kernel_size": 2, "conv_group_size": 16}
SELECTOR = {"selector_rank": 256, "selector_top_k": 16}
MARKOV = {"markov_rank": 256, "markov_head_type": "vanilla"}
CONFIDENCE = {"enable_confidence_head": True, "confidence_head_with_markov": True}
#: by the field of each that tells whether it is there
PARTS = {next(iter(part)): part for part in (CONVOLUTION, SELECTOR, MARKOV, CONFIDENCE)}
#: by speculators' type of head, what it adds and the name of its class
ADDED: dict[str, dict[str, Any]] = {"dflash": {}, "dflash2": CONVOLUTION | SELECTOR, "dspark": MARKOV | CONFIDENCE}
NAMES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}
WITHOUT_VOCABULARY = "its config does not say how many tokens the target has (`vocab_size`, `draft_vocab_size`)"
SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
#: those that z-lab's and DeepSpec's files name
ARCHITECTURES = {*NAMES.values(), "Qwen3DSparkModel", "Gemma4DSparkModel"}
#: what the files of some other kinds of heads say, which nothing here runs
UNKNOWN = ("draft_shift", "shift_label", "fc_norm", "use_swa", "dspark_backbone_conv_enabled")
KINDS_OF_LAYERS = ["full_attention", "sliding_attention"]


def unsupported_by_speculators(config: PreTrainedConfig) -> dict[str, Any]:
    """Reasons why speculators' layout may have no place for a head, and whether each holds."""
    block = DFlashHeadConfig.of(config)
    from_each = _has_windows(block) and not block.window_from_anchor
    return {
        WITHOUT_VOCABULARY: block.draft_vocab_size is None,
        "its block is causal in layers without a window (JetSpec)": "full_attention" in _causal(block),
        "its windows reach from each place of the block, not from the first": from_each,
        "it scales embeddings or logits": _scales(block),
    }


def for_speculators(config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
    block = DFlashHeadConfig.of(config)
    kind, window = _kind(block), block.sliding_window if _has_windows(block) else None
    fields = {
        "architectures": [NAMES[kind]],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": getattr(config, "speculators_config", None) or speculators_config(kind, block.max_draft_tokens),
        "transformer_layer_config": _layers(block, window),
        "draft_vocab_size": block.draft_vocab_size,
        "block_size": block.block_size,
        "mask_token_id": block.mask_token_id,
        "aux_hidden_state_layer_ids": list(block.hidden_layers),
        "target_hidden_size": None,
        "sliding_window_non_causal": "sliding_attention" not in block.causal_layer_types,
        "sample_from_anchor": block.sample_from_anchor,
        "tie_word_embeddings": False,
        "dtype": dtype_of(tensors),
        **{name: getattr(block, name) for name in ADDED[kind]},
    }
    tensors = _published(tensors)
    if "d2t" in tensors:
        tensors["t2d"] = members(tensors["d2t"].cpu(), block.vocab_size)
    return fields, tensors


def unsupported_by_z_lab(config: PreTrainedConfig) -> dict[str, Any]:
    """The same of z-lab's layout."""
    block = DFlashHeadConfig.of(config)
    has_windows, is_dspark = _has_windows(block), _kind(block) == "dspark"
    return {
        WITHOUT_VOCABULARY: block.draft_vocab_size is None,
        "it has a draft vocabulary of its own": block.has_own_ids,
        "it is a DSpark head, and DeepSpec's files hold the target's embeddings and output layer": is_dspark,
        "its newest token's place predicts": block.sample_from_anchor,
        "its windows reach from the first place of the block, not from each": has_windows and block.window_from_anchor,
        "its block is causal in layers without a window only": has_windows and _causal(block) == {"full_attention"},
    }


def for_z_lab(config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
    block = DFlashHeadConfig.of(config)
    kind, causal = _kind(block), _causal(block)
    own = {
        "mask_token_id": block.mask_token_id,
        "target_layer_ids": list(block.target_layer_ids),
        **{name: getattr(block, name) for name in (*ADDED[kind], *_scales(block))},
    }
    fields = _layers(block, block.sliding_window + 1 if _has_windows(block) else None)
    fields |= {
        "architectures": [NAMES[kind]],
        "block_size": block.block_size,
        "num_target_layers": getattr(config, "num_target_layers", max(block.target_layer_ids) + 3),
        "dflash_config": own | ({"causal_head": True} if "full_attention" in causal else {}),
        "tie_word_embeddings": False,
        "dtype": dtype_of(tensors),
    }
    if causal != {"sliding_attention"}:  # which is what layers with a window are where nothing is said
        fields["is_causal"] = causal == {*block.layer_types}
    return fields, _published(tensors)


def _kind(block: DFlashHeadConfig) -> str:
    """What it is called in speculators."""
    if block.markov_rank or block.enable_confidence_head:
        return "dspark"
    return "dflash2" if block.selector_rank else "dflash"


def _has_windows(block: DFlashHeadConfig) -> bool:
    return "sliding_attention" in (block.layer_types or ())


def _causal(block: DFlashHeadConfig) -> set[str]:
    """The kinds of its layers in which the block is causal."""
    return {*block.causal_layer_types} & {*block.layer_types}


def _scales(block: DFlashHeadConfig) -> list[str]:
    """The names of those that are not as without them."""
    return [name for name in SCALES if getattr(block, name) != getattr(DFlashHeadConfig, name)]


def _layers(block: DFlashHeadConfig, window: int | None) -> dict[str, Any]:
    fields = {name: getattr(block, name) for name in (*LAYER_FIELDS, "head_dim", "layer_types", "vocab_size")}
    windows = {"sliding_window": window, "use_sliding_window": window is not None}
    return fields | windows | {"model_type": "qwen3", "attention_bias": False}


def _published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in RENAMED.items()}
    return {names.get(name, name): tensor for name, tensor in tensors.items()}


class DFlashLayout(Layout):
    """What both have in common.

    Attributes:
        names: fields that files call otherwise than `DFlashHeadConfig`.
    """

    models: ClassVar = {DFlashHeadConfig: DFlashHead, MuseGlimmerAssistantConfig: MuseGlimmerAssistantModel}
    of_target = ("embed_tokens.", "verifier_norm.", "verifier_lm_head.", "t2d")
    names: ClassVar[dict[str, str]] = {}

    def fields(self, layers: PreTrainedConfig) -> dict[str, Any]:
        """Fields of `DFlashHeadConfig` beside those of the `layers`."""
        raise NotImplementedError

    def layers(self) -> PreTrainedConfig:
        """The config of the layers, as the file has it."""
        raise NotImplementedError

    def config(self) -> MuseGlimmerAssistantConfig:
        layers = self.layers()
        own = {name: value for name, value in self.fields(layers).items() if value is not None}
        self._check_fields(layers, own)
        fields = {name: getattr(layers, name) for name in LAYER_FIELDS}
        fields["head_dim"] = getattr(layers, "head_dim", None) or layers.hidden_size // layers.num_attention_heads
        fields["layer_types"] = getattr(layers, "layer_types", None) or KINDS_OF_LAYERS[:1] * layers.num_hidden_layers
        dtype = self.files.fields.get("dtype", self.files.fields.get("torch_dtype"))
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        adds = own["draft_vocab_size"] < own["vocab_size"] or any(map(own.get, PARTS))
        kind = DFlashHeadConfig if adds else MuseGlimmerAssistantConfig
        return kind(**fields | ids | own, dtype=dtype, tie_word_embeddings=False)

    def renamed(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
        has_own_ids = config.draft_vocab_size < config.vocab_size
        of_target = self.of_target if has_own_ids else (*self.of_target, "lm_head.")
        found = {name: tensor for name, tensor in tensors.items() if not name.startswith(of_target)}
        # Some files have codebooks as embeddings.
        found = {name.replace("_codebook.weight", "_codebook"): tensor for name, tensor in found.items()}
        return {RENAMED.get(name, name): tensor for name, tensor in found.items()}

    def _check_fields(self, layers: PreTrainedConfig, own: dict[str, Any]) -> None:
        missing = [name for name in ("block_size", "mask_token_id", "target_layer_ids") if name not in own]
        unknown = [name for name in UNKNOWN if self.value(name)]
        kinds = sorted(set(getattr(layers, "layer_types", None) or ()) - set(KINDS_OF_LAYERS))
        markov, group, size = own.get("markov_head_type", "vanilla"), own.get("conv_group_size", 1), layers.hidden_size
        width = self.value("target_hidden_size")
        reasons = {
            f"its config.json does not say {', '.join(self.names.get(name, name) for name in missing)}": missing,
            f"{', '.join(f'`{name}={self.value(name)!r}`' for name in unknown)} belongs to another kind of head": unknown,
            f"`target_hidden_size={width}` is not its `hidden_size={size}`": width not in (None, size),
            "its attention has biases (`attention_bias=True`)": getattr(layers, "attention_bias", False),
            f"`layer_types` has {', '.join(kinds)}": kinds,
            f"`markov_head_type={markov!r}` is not one of {', '.join(MARKOV_HEADS)}": markov not in MARKOV_HEADS,
            "`confidence_head_with_markov=True` needs a `markov_rank` above 0": (
                own.get("confidence_head_with_markov") and not own.get("markov_rank")
            ),
            f"`conv_group_size={group}` does not divide `hidden_size={size}`": (own.get("conv_kernel_size") and size % group),
        }
        if reason := first_reason(reasons):
            raise ValueError(f"{self.files.name} cannot be run as a DFlash head: {reason}.")

    def value(self, name: str):
        """A field by the name that it has in the file."""
        return self.files.fields.get(name)


class ZLabLayout(DFlashLayout):
    """z-lab's: a Qwen3 config with `dflash_config`; `z-lab/*-DFlash`, JetSpec's heads, DFlash 2; DeepSpec's DSpark heads.

    Read as the packages `dflash` 0.1.0 and DeepSpec do.
    """

    name = "z-lab"
    unsupported, published = staticmethod(unsupported_by_z_lab), staticmethod(for_z_lab)

    @classmethod
    def recognises(cls, files) -> bool:
        names = files.fields.get("architectures") or ()
        is_named = "dflash_config" in files.fields or not ARCHITECTURES.isdisjoint(names)
        return is_named and "speculators_model_type" not in files.fields

    def value(self, name: str):
        own = self.files.fields.get("dflash_config") or self.files.fields.get("dspark_config") or {}
        return own.get(name, self.files.fields.get(name))

    def layers(self) -> PreTrainedConfig:
        fields = {name: value for name, value in self.files.fields.items() if name != "model_type"}
        kind = self.files.fields.get("model_type", "qwen3")
        if kind != "qwen3":
            raise ValueError(f"{self.files.name}: its layers are of type {kind!r}, and only Qwen3's can be run.")
        return AutoConfig.for_model(kind, **fields)

    def fields(self, layers: PreTrainedConfig) -> dict[str, Any]:
        parts = [name for tells, part in PARTS.items() if self.value(tells) for name in part]
        window = getattr(layers, "sliding_window", None)
        return {
            **{name: self.value(name) for name in ("block_size", "mask_token_id", *SCALES, *parts)},
            "target_layer_ids": self.value("target_layer_ids") or self._default_layers(layers.num_hidden_layers),
            "num_target_layers": self.value("num_target_layers"),
            "sample_from_anchor": any("DSpark" in name for name in self.files.fields.get("architectures") or ()),
            "causal_layer_types": self._causal_layer_types(),
            # A window of w reaches w - 1 tokens from a place here, and w in transformers.
            "sliding_window": (window or layers.max_position_embeddings + 1) - 1,
            "vocab_size": layers.vocab_size,
            "draft_vocab_size": self.value("draft_vocab_size") or layers.vocab_size,
        }

    def _causal_layer_types(self) -> list[str]:
        """All kinds of layers in JetSpec's heads; else those with a window, unless the file says otherwise."""
        is_causal = True if self.value("causal_head") else self.files.fields.get("is_causal")
        if is_causal is None:
            return KINDS_OF_LAYERS[1:]
        return KINDS_OF_LAYERS if is_causal else []

    def _default_layers(self, num_layers: int) -> list[int] | None:
        num_target_layers = self.value("num_target_layers")
        if num_target_layers is None:
            return None
        if num_layers == 1:
            return [num_target_layers // 2]
        first, last = 1, num_target_layers - 3
        return [round(first + i * (last - first) / (num_layers - 1)) for i in range(num_layers)]


class SpeculatorsDFlashLayout(DFlashLayout):
    """speculators' (`speculators_model_type`), which vLLM reads; `RedHatAI/*-speculator.dflash`."""

    name = "speculators"
    unsupported, published = staticmethod(unsupported_by_speculators), staticmethod(for_speculators)
    speculators_types = ("dflash", "dflash2", "dspark")
    names = {"target_layer_ids": "aux_hidden_state_layer_ids"}  # noqa: RUF012

    def layers(self) -> PreTrainedConfig:
        fields = dict(self.files.fields.get("transformer_layer_config") or {})
        return AutoConfig.for_model(fields.pop("model_type", "qwen3"), **fields)

    def fields(self, layers: PreTrainedConfig) -> dict[str, Any]:
        kind, states = self.files.fields["speculators_model_type"], self.value("aux_hidden_state_layer_ids")
        is_bidirectional = self._or("sliding_window_non_causal", kind == "dflash2")
        size, from_anchor = self._or("block_size", 8), self._or("sample_from_anchor", kind == "dspark")
        return {
            **{name: self._or(name, default) for name, default in ADDED[kind].items()},
            "block_size": size,
            "mask_token_id": self.value("mask_token_id"),
            "target_layer_ids": None if states is None else [index - 1 for index in states],
            "sample_from_anchor": from_anchor,
            "causal_layer_types": [] if is_bidirectional else KINDS_OF_LAYERS[1:],
            "window_from_anchor": True,
            "sliding_window": getattr(layers, "sliding_window", None) or layers.max_position_embeddings,
            "vocab_size": layers.vocab_size,
            "draft_vocab_size": self._or("draft_vocab_size", 32000),
            "speculators_config": self._or("speculators_config", speculators_config(kind, size - (not from_anchor))),
        }

    def _or(self, name: str, default):
        value = self.value(name)
        return default if value is None else value


class SavedDFlashLayout(Layout):
    """What `DFlashHead.save_pretrained` writes."""

    models: ClassVar = {DFlashHeadConfig: DFlashHead}

    @classmethod
    def recognises(cls, files) -> bool:
        return files.fields.get("model_type") == DFlashHeadConfig.model_type

    def config(self) -> DFlashHeadConfig:
        return DFlashHeadConfig(**self.files.settings)
