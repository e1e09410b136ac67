"""Write DFlash heads in the published layouts: the inverse of `dflash_layouts`."""

from typing import Any

from torch import Tensor
from transformers import MuseGlimmerAssistantConfig, PreTrainedConfig, Qwen3Config

from .dflash import Block
from .eagle3_config import SPECULATORS_VERSION, speculators_config
from .files import members
from .layout import Published, dtype_of

#: tensors that have other names in transformers' class
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
#: fields of the layers
LAYER_FIELDS = (MuseGlimmerAssistantConfig.__annotations__.keys() & Qwen3Config.__annotations__.keys()) - {
    *("attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("head_dim", "layer_types", "sliding_window"),  # which some files do not say
}
#: fields of what heads add, by the same names in all layouts
CONVOLUTION = ("conv_kernel_size", "conv_group_size")
SELECTOR = ("selector_rank", "selector_top_k")
MARKOV = ("markov_rank", "markov_head_type")
CONFIDENCE = ("enable_confidence_head", "confidence_head_with_markov")
#: the first of each tells whether it is there
PARTS = (CONVOLUTION, SELECTOR, MARKOV, CONFIDENCE)
#: by speculators' type of head, what it adds and the name of its class
ADDED = {"dflash": (), "dflash2": (*CONVOLUTION, *SELECTOR), "dspark": (*MARKOV, *CONFIDENCE)}
NAMES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}
WITHOUT_VOCABULARY = "its config does not say how many tokens the target has (`vocab_size`, `draft_vocab_size`)"
SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")


def unsupported_by_speculators(config: PreTrainedConfig) -> dict[str, Any]:
    """Reasons why speculators' layout may have no place for a head, and whether each holds."""
    block, anchored = Block.of(config), _windows_from_anchor(config)
    return {
        WITHOUT_VOCABULARY: not _knows_vocabulary(config),
        "its block is causal in layers without a window (JetSpec)": "full_attention" in _causal(config, block),
        "its windows reach from each place of the block, not from the first": anchored is False,
        "it scales embeddings or logits": _scales(block),
    }


def for_speculators(config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
    block, kind = Block.of(config), _kind(config)
    window = block.sliding_window if "sliding_attention" in config.layer_types else None
    fields = {
        "architectures": [NAMES[kind]],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": getattr(config, "speculators_config", None) or speculators_config(kind, block.max_draft_tokens),
        "transformer_layer_config": _layers(config, window),
        "draft_vocab_size": config.draft_vocab_size,
        "block_size": block.block_size,
        "mask_token_id": block.mask_token_id,
        "aux_hidden_state_layer_ids": list(block.hidden_layers),
        "target_hidden_size": None,
        "sliding_window_non_causal": "sliding_attention" not in block.causal_layer_types,
        "sample_from_anchor": block.sample_from_anchor,
        "tie_word_embeddings": False,
        "dtype": dtype_of(tensors),
        **{name: getattr(config, name) for name in ADDED[kind]},
    }
    tensors = _published(tensors)
    if "d2t" in tensors:
        tensors["t2d"] = members(tensors["d2t"].cpu(), config.vocab_size)
    return fields, tensors


def unsupported_by_z_lab(config: PreTrainedConfig) -> dict[str, Any]:
    """The same of z-lab's layout."""
    block, anchored = Block.of(config), _windows_from_anchor(config)
    is_dspark = _kind(config) == "dspark"
    return {
        WITHOUT_VOCABULARY: not _knows_vocabulary(config),
        "it has a draft vocabulary of its own": getattr(config, "has_own_ids", False),
        "it is a DSpark head, and DeepSpec's files hold the target's embeddings and output layer": is_dspark,
        "its newest token's place predicts": block.sample_from_anchor,
        "its windows reach from the first place of the block, not from each": anchored,
        "its block is causal in layers without a window only": (
            anchored is not None and _causal(config, block) == {"full_attention"}
        ),
    }


def for_z_lab(config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
    block, kind = Block.of(config), _kind(config)
    causal, kinds = _causal(config, block), set(config.layer_types)
    own = {
        "mask_token_id": block.mask_token_id,
        "target_layer_ids": list(block.target_layer_ids),
        **{name: getattr(config, name) for name in ADDED[kind]},
        **{name: getattr(block, name) for name in _scales(block)},
    }
    fields = _layers(config, block.sliding_window + 1 if "sliding_attention" in kinds else None)
    fields |= {
        "architectures": [NAMES[kind]],
        "block_size": block.block_size,
        "num_target_layers": getattr(config, "num_target_layers", max(block.target_layer_ids) + 3),
        "dflash_config": own | ({"causal_head": True} if "full_attention" in causal else {}),
        "tie_word_embeddings": False,
        "dtype": dtype_of(tensors),
    }
    if causal != {"sliding_attention"}:  # which is what layers with a window are where nothing is said
        fields["is_causal"] = causal == kinds
    return fields, _published(tensors)


def _kind(config: PreTrainedConfig) -> str:
    """What it is called in speculators."""
    if getattr(config, "markov_rank", 0) or getattr(config, "enable_confidence_head", False):
        return "dspark"
    return "dflash2" if getattr(config, "selector_rank", 0) else "dflash"


def _knows_vocabulary(config: PreTrainedConfig) -> bool:
    return hasattr(config, "vocab_size") and hasattr(config, "draft_vocab_size")


def _windows_from_anchor(config: PreTrainedConfig) -> bool | None:
    """`Block.window_from_anchor`; `None` where no layer has a window."""
    return Block.of(config).window_from_anchor if "sliding_attention" in config.layer_types else None


def _causal(config: PreTrainedConfig, block: Block) -> set[str]:
    """The kinds of its layers in which the block is causal."""
    return set(block.causal_layer_types) & set(config.layer_types)


def _scales(block: Block) -> list[str]:
    """The names of those that are not as without them."""
    return [name for name in SCALES if getattr(block, name) != getattr(Block, name)]


def _layers(config: PreTrainedConfig, window: int | None) -> dict[str, Any]:
    fields = {name: getattr(config, name) for name in (*LAYER_FIELDS, "head_dim", "layer_types", "vocab_size")}
    windows = {"sliding_window": window, "use_sliding_window": window is not None}
    return fields | windows | {"model_type": "qwen3", "attention_bias": False}


def _published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in RENAMED.items()}
    return {names.get(name, name): tensor for name, tensor in tensors.items()}
