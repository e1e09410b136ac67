"""The config of EAGLE-3 and P-EAGLE heads, by the names that speculators gives its fields."""

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

#: the version of speculators whose layout is written
SPECULATORS_VERSION = "0.9.0"
#: layers of the target that are read where nothing says which
NUM_STATES = 3
#: tokens of a draft of MTP heads and P-EAGLE where their config does not say how many
NUM_DEPTHS = 8
#: types of layers that there are modules for
LAYER_TYPES = ("llama", "qwen3")


class SpeculatorsConfig(PreTrainedConfig):
    """What configs of heads in speculators' layouts have in common: a config of their layers, and fields about their use.

    Attributes:
        layers_by_default: the type of the layers where their config does not say it, as in speculators.
    """

    model_type = "speculators"
    sub_configs = {"transformer_layer_config": AutoConfig}  # noqa: RUF012
    layers_by_default: ClassVar[str] = "qwen3"

    speculators_config: Any = None
    transformer_layer_config: Any = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs):
        layers = self.transformer_layer_config or {}
        if isinstance(layers, dict):
            fields = dict(layers)
            layers = AutoConfig.for_model(fields.pop("model_type", self.layers_by_default), **fields)
        self.transformer_layer_config = layers
        if self.speculators_config is None:
            self.speculators_config = speculators_config(self.speculators_model_type)
        super().__post_init__(**kwargs)

    @property
    def max_draft_tokens(self) -> int:
        """How many tokens MTP heads and P-EAGLE were trained to draft."""
        methods = self.speculators_config.get("proposal_methods") or [{}]
        return methods[0].get("speculative_tokens", NUM_DEPTHS)

    def get_text_config(self, decoder=None, encoder=None) -> PreTrainedConfig:
        return self.transformer_layer_config

    def to_diff_dict(self) -> dict[str, Any]:
        layers = {"transformer_layer_config": self.transformer_layer_config.to_diff_dict()}
        return self._published(super().to_diff_dict() | layers)

    def _published(self, fields: dict[str, Any]) -> dict[str, Any]:
        """As speculators writes them: without a `model_type`, which AutoConfig would not know."""
        fields.pop("model_type", None)
        return fields


class Eagle3Config(SpeculatorsConfig):
    """Config of an EAGLE-3 head, its fields by the names that speculators gives them.

    Args:
        transformer_layer_config: the layers', a Llama or Qwen3 config; its vocabulary is the target's.
        draft_vocab_size: tokens that the head can propose.
        norm_before_residual: the residual of the first layer is the state after its norm, not before.
        norm_before_fc: one norm over all target states before they are fused.
        fc_norm: a norm for each of them instead (EAGLE-3.1).
        norm_output: the head's own states go on as they come out of the last norm (EAGLE-3.1).
        target_hidden_size: width of the target's states, if it is not the head's.
        eagle_aux_hidden_state_layer_ids: which of transformers' `hidden_states` of the target are read (0 is its embeddings);
            `None`: see `default_layers`.
        embed_requires_grad: the embeddings were trained, so that they are not the target's.
        has_embed_tokens: embeddings come with the head; without, it reads the target's. Not a field of speculators, which
            always saves them.
        speculators_config: what speculators and vLLM read of it: the target's name and how many tokens to draft.
        mask_token_id: of P-EAGLE, the token at positions whose token is not known yet.
    """

    model_type = "eagle3"

    speculators_model_type: str = "eagle3"
    speculators_version: str = SPECULATORS_VERSION
    draft_vocab_size: int = 32000
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    target_hidden_size: int | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    embed_requires_grad: bool = False
    has_embed_tokens: bool = True
    mask_token_id: int | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        layers = self.transformer_layer_config
        if layers.model_type not in LAYER_TYPES:
            given = f"`transformer_layer_config.model_type={layers.model_type!r}`"
            raise ValueError(f"{given}: EAGLE-3 heads can be run with layers of type {' or '.join(LAYER_TYPES)}.")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("`norm_before_fc` and `fc_norm` are both true, and only one norm stands before `fc`.")
        rope = getattr(layers, "rope_parameters", None) or {}
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"`partial_rotary_factor={rope['partial_rotary_factor']}`: heads with one cannot be run.")
        if self.is_parallel and self.mask_token_id is None:
            raise ValueError("`speculators_model_type='peagle'` needs `mask_token_id`, and the config has none.")

    @property
    def is_parallel(self) -> bool:
        """P-EAGLE: all draft tokens come from one pass."""
        return self.speculators_model_type == "peagle"

    @property
    def num_states(self) -> int:
        """How many of the target's states are read."""
        return len(self.eagle_aux_hidden_state_layer_ids or ()) or NUM_STATES

    @property
    def state_size(self) -> int:
        """Width of each of them."""
        return self.target_hidden_size or self.transformer_layer_config.hidden_size

    @property
    def has_own_ids(self) -> bool:
        """The draft vocabulary is a part of the target's, with ids of its own."""
        return self.draft_vocab_size != self.transformer_layer_config.vocab_size

    def layers_read(self, num_layers: int) -> tuple[int, ...]:
        """The indices of `hidden_states` to read, of a target with `num_layers` layers."""
        return tuple(self.eagle_aux_hidden_state_layer_ids or default_layers(num_layers))

    def _published(self, fields: dict[str, Any]) -> dict[str, Any]:
        kind = "PEagleDraftModel" if self.is_parallel else "Eagle3DraftModel"
        return super()._published(fields) | {"architectures": [kind], "tie_word_embeddings": False}


def speculators_config(algorithm: str, num_draft_tokens: int | None = None, target: Any = None) -> dict[str, Any]:
    """The field of that name, for a head of a target whose config is `target`."""
    if num_draft_tokens is None:
        num_draft_tokens = NUM_DEPTHS if algorithm == "peagle" else 3
    name, architectures = (getattr(target, field, None) for field in ("name_or_path", "architectures"))
    method = {"accept_tolerance": 0.0, "proposal_type": "greedy", "verifier_accept_k": 1}
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [method | {"speculative_tokens": num_draft_tokens}],
        "verifier": {"name_or_path": name or None, "architectures": architectures or []},
    }


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The layers that EAGLE, speculators and vLLM read by default: an early, a middle and a late one."""
    return 2, num_layers // 2, num_layers - 3
