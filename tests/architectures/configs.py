"""A tiny config of any model type: its defaults, shrunk field by field, and what a recipe says on top."""

import copy
import re
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .recipes import FIELDS, STARTS

VOCAB = 99
HIDDEN, HEADS, HEAD_DIM = 64, 4, 16
MIN_LAYERS, MAX_LAYERS = 2, 8

#: what a field of this name becomes; the first pattern that matches the whole name counts
SIZES: list[tuple[str, Any]] = [
    (r"num_kv_shared_layers|num_nextn_predict_layers", 0),
    (r"no_rope_layers|pos_emb_width|conv1d_width|.*kernel.*|temporal_patch_size", lambda old: old),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"n_groups", lambda old: min(old, 2)),
    (r"(.*_)?vocab_size(_per_layer_input)?|n_vocab|src_vocab_size|tgt_vocab_size", VOCAB),
    (r"type_vocab_size|num_labels|.*_vocab_size_base", lambda old: min(old, 3)),
    (r"(encoder_|decoder_)?(num_hidden_layers|n_layers?|num_layers|depth|layers)", 2),
    (r"num_(encoder|decoder|local|global)_layers|.*_num_hidden_layers|.*_(num_)?layers|.*depth", 2),
    (r".*(query_groups|(kv|key_value)_heads|kv_n_heads)(_per_layer)?", lambda old: min(old, 2)),
    (r"linear_num_value_heads", 4),
    (r"linear_num_key_heads", 2),
    (r".*(n_heads?|num_heads|attention_heads|num_attention_heads|num_linear_heads)", HEADS),
    (r"(q|kv|o)_lora_rank|.*_rank|rank", 16),
    (r"qk_head_dim", 24),
    (r"qk_nope_head_dim|v_head_dim", 16),
    (r"qk_rope_head_dim|rotary_dim", lambda old: min(old, 8)),
    (r".*head_dim|.*headdim|.*_d_head|d_head|d_kv|kv_channels|attention_head_size|dim_head|mamba_head_dim", HEAD_DIM),
    (r"(n|num)_(routed|local)_experts|num_experts|.*_num_experts|zero_expert_num", lambda old: min(old, 4)),
    (r".*experts_per_tok(en)?|moe_top_?k|moe_k", lambda old: min(old, 2)),
    (r"n_group|num_expert_group|topk_group|.*shared_experts", lambda old: min(old, 1)),
    (r"(sliding_|attention_|local_)?window(_size)?|sliding_window_size|attention_chunk_size|.*window_size", 8),
    (r"attention_window|local_attention|local_attention_window_len|keep_window_size", 8),
    (r"sliding_window_pattern|_sliding_window_pattern|.*_period|.*_interval|global_attn_every_n_layers", 2),
    (r".*_layer_offset|first_k_dense_replace|num_dense_layers|moe_layer_start_index", lambda old: min(old, 1)),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_.*_positions|context_length|model_max_length", 256),
    (r"original_max_position_embeddings", 256),
    (r".*state_size|.*d_state|.*chunk_size", lambda old: min(old, 8)),
    (r"patch_size|.*_patch_size", 4),
    (r"image_size|.*crop_size", 8),
    (r"num_mel_bins|feature_size|input_feat_.*", 8),
    (r"intermediate_size|.*_intermediate_size(_mlp)?|.*ffn_(hidden_)?(dim|size)|d_ff|dff|n_inner|dim_ff|d_inner", 48),
    (r"intermediate_size_mlp|mlp_dim|.*_mlp_dim|feed_forward_size", 48),
    (r"(.*_)?(hidden_size|d_model|n_embd|emb_dim|embedding_dim|width|embed_dim|dim_model)", HIDDEN),
    (r".*(hidden_size|embedding_size|_embed_dim|embed_proj_dim|projection_dim|(in|out|input|output)_dim)", HIDDEN),
    (r"index_topk|keep_window_size", 64),
]  # fmt: skip
TOKEN = re.compile(r"(?!.*per_token|use_).*(_token_id|_token_index|_token|_token_ids)")
NOT_SIZES = {"transformers_version", "architectures", "dtype", "_name_or_path", "id2label", "label2id"}
#: tokens that end or force an output; without them every row runs to the end
NO_TOKEN = re.compile(r"(eos|forced_.*|.*suppress).*(id|ids|tokens|index)")


def tiny_config(model_type: str):
    """A config small enough to run in milliseconds, with every kind of layer that the type's default has."""
    cls = CONFIG_MAPPING[model_type]
    start = copy.deepcopy(STARTS.get(model_type, {}))  # some config classes take dicts apart
    values = cls(**start).to_dict()
    return cls(**copy.deepcopy(Shrinker().shrink(values)))  # recipes share parts


class Shrinker:
    """Shrinks nested config dicts; special tokens get ids of their own, from the vocabulary's end."""

    def __init__(self):
        self.next_token = VOCAB - 1
        self.tokens: dict[Any, int] = {}

    def shrink(self, values: dict) -> dict:
        small = {name: self._field(str(name), value) for name, value in values.items() if name not in NOT_SIZES}
        if "qk_rope_head_dim" in values and "head_dim" in values:  # latent attention: one of the two under another name
            same = [name for name in ("qk_rope_head_dim", "qk_head_dim") if values.get(name) == values["head_dim"]]
            small["head_dim"] = small[(same or ["head_dim"])[0]]
        if None is not values.get("num_key_value_heads") == values.get("num_attention_heads"):
            small["num_key_value_heads"] = small["num_attention_heads"]
        self._pick_layers(values, small)
        return merge(small, FIELDS.get(values.get("model_type"), {}))

    def _field(self, name: str, value):
        if isinstance(value, dict):
            return self._rope(value) if "rope" in name else self.shrink(value)
        if NO_TOKEN.fullmatch(name):
            return None
        if name == "pad_token_id" or name == "padding_idx":
            return 0
        if name == "initializer_range":  # some defaults are as small as 1e-10
            return max(value, 0.02)
        if isinstance(value, bool) or not isinstance(value, (int, list)):
            return value
        if TOKEN.fullmatch(name):
            return self._token(value)
        for pattern, size in SIZES:
            if isinstance(value, int) and re.fullmatch(pattern, name):
                return size if not callable(size) else size(value)
        return value

    def _token(self, value):
        # The same token may be named in a config and its sub-config.
        if isinstance(value, list):
            return [self._token(one) for one in value]
        if value < 0:
            return value
        if value not in self.tokens:
            self.tokens[value], self.next_token = self.next_token, self.next_token - 1
        return self.tokens[value]

    def _rope(self, rope: dict) -> dict:
        rope = {name: self._rope(value) if isinstance(value, dict) else value for name, value in rope.items()}
        if rope.get("mrope_section"):
            half = int(HEAD_DIM * rope.get("partial_rotary_factor", 1)) // 2
            others = len(rope["mrope_section"]) - 1
            rest = half // (others + 1)
            rope["mrope_section"] = [half - rest * others] + [rest] * others
        if "original_max_position_embeddings" in rope:
            rope["original_max_position_embeddings"] = 256
        return rope

    def _pick_layers(self, values: dict, small: dict) -> None:
        """Lists with an entry a layer keep one layer of every kind."""
        count = next((name for name in LAYER_COUNTS if isinstance(values.get(name), int)), None)
        if count is None:
            return
        every = list(range(values[count]))
        lists = {
            name: value
            for name, value in values.items()
            if isinstance(value, list) and len(value) == values[count] and value != every
        }
        if by_layer := values.get("per_layer_config"):
            by_layer = {int(index): one for index, one in by_layer.items()}
            lists["per_layer_config"] = [by_layer.get(index) for index in range(values[count])]
        if not lists:
            small.update({name: every[: small[count]] for name, value in values.items() if value == every})
            return
        kinds = list(zip(*(map(str, value) for value in lists.values()), strict=True))
        picked = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]][:MAX_LAYERS]
        rest = [index for index in range(len(kinds)) if index not in picked]
        picked = sorted(picked + rest[: max(0, MIN_LAYERS - len(picked))])
        small[count] = len(picked)
        small.update({name: every[: len(picked)] for name, value in values.items() if value == every})
        for name, value in lists.items():
            small[name] = [self._field(name, value[index]) for index in picked]
        if by_layer:
            small["per_layer_config"] = {i: one for i, one in enumerate(small["per_layer_config"]) if one}


LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")


def merge(values: dict, overrides: dict) -> dict:
    """`overrides` written into nested `values`; `...` drops a field."""
    merged = dict(values)
    for name, value in overrides.items():
        if value is ...:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = value
    return merged
