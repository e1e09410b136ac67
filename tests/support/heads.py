"""Draft heads for the tests: the fixtures in tests/heads/fixtures, and random ones made for tiny targets."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.heads.eagle3_config import Eagle3Config
from tests.support import tied, tiny

FIXTURES = Path(__file__).parents[1] / "heads" / "fixtures"
MTP_STEPS = 3
EAGLE3 = sorted(folder.name for folder in FIXTURES.glob("eagle3_*"))
#: which of the target's states it reads
FITTED_LAYERS = [2, 3, 5]
#: new tokens of a text that it is fitted to
NUM_TOKENS = 8
#: how much more the target's layers write than they would, and how much larger the head's states are than after a norm
LOUDNESS, SCALE = 16.0, 16.0


def expected_of(name: str) -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / name / "expected.safetensors")


@torch.no_grad()
def target_for(embeddings: torch.Tensor):
    """A random Llama with these embeddings, which the heads of fixtures fit."""
    model = tiny.llama(vocab_size=embeddings.shape[0], hidden=embeddings.shape[1], layers=6)
    model.get_input_embeddings().weight.copy_(embeddings)
    return model


@torch.no_grad()
def eagle3(target, seed: int = 0, kind: str = "llama", draft_vocab: int | None = None, hidden: int = 32, **fields):
    """A random head for `target`, which agrees with it about some tokens if it is as wide.

    Args:
        kind: type of its layers.
        draft_vocab: tokens that it can propose, spread over the target's vocabulary; by default all.
        hidden: its width.
        fields: of its config; `layers`, of its layers' config.
    """
    torch.manual_seed(seed)
    own = target.config.get_text_config(decoder=True)
    layers = {"model_type": kind, "vocab_size": own.vocab_size, "hidden_size": hidden, "intermediate_size": 48}
    layers |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": hidden // 4}
    layers |= {"max_position_embeddings": 128, "pad_token_id": None} | fields.pop("layers", {})
    fields = {"eagle_aux_hidden_state_layer_ids": [0, 1, own.num_hidden_layers], **fields}
    is_narrow = hidden != own.hidden_size
    fields |= {"transformer_layer_config": layers, "draft_vocab_size": draft_vocab or own.vocab_size}
    fields["has_embed_tokens"] = is_narrow or fields.get("speculators_model_type") == "peagle"
    config = Eagle3Config(**fields, target_hidden_size=own.hidden_size if is_narrow else None)
    config._attn_implementation = own._attn_implementation
    head = tiny._spread(Eagle3Model(config).eval())
    if head.d2t is not None:
        ids = torch.randperm(own.vocab_size)[:draft_vocab].sort().values
        head.d2t.copy_(ids - torch.arange(draft_vocab))
        head.t2d[ids] = True
    if head.config.is_parallel:
        head.mask_hidden.normal_()
    if head.embed_tokens is not None and hidden == own.hidden_size:
        head.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    if hidden == own.hidden_size:
        _knows_the_newest_token(head, target)
    return head


def _knows_the_newest_token(head, target):
    """Its first layer attends to where the newest token stands, and its embedding goes on to a head like the target's."""
    first, size = head.layers[0].self_attn, head.fc.out_features
    passed = torch.cat([torch.eye(size), torch.zeros(size, size)], 1)
    for part, factor in ((first.q_proj, 3.0), (first.k_proj, 3.0), (first.v_proj, 1.0)):
        part.weight.copy_(factor * passed)
    first.o_proj.weight.copy_(torch.eye(size))
    for norm in ("q_norm", "k_norm"):
        if hasattr(first, norm):
            getattr(first, norm).weight.mul_(3.0)
    head.fc.weight.mul_(0.1)
    for layer in head.layers:
        layer.mlp.down_proj.weight.mul_(0.1)
    for layer in head.layers[1:]:
        layer.self_attn.o_proj.weight.mul_(0.1)
    ids = slice(None) if head.d2t is None else head.t2d
    head.lm_head.weight.copy_(target.get_output_embeddings().weight[ids])


def loud_target():
    """A random target whose layers write much, so that no two of its states are alike."""
    model = tiny.llama(layers=7)
    tied.hush(model.model.layers, LOUDNESS)
    return model


def fitted(model, prompts: list[list[int]]) -> Eagle3Model:
    """A head that was fitted to the greedy text of the target after each prompt, by the states that its config names.

    Its first layer hears nothing of the tokens, only of the target's states; from other states it knows little.

    Args:
        prompts: of one length.
    """
    torch.manual_seed(1)
    own = model.config
    layers = {name: getattr(own, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    layers |= {"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 2, "intermediate_size": 64}
    layers |= {"max_position_embeddings": 128, "pad_token_id": None}
    fields = {"norm_before_residual": False, "has_embed_tokens": False, "draft_vocab_size": own.vocab_size}
    fields["eagle_aux_hidden_state_layer_ids"] = list(FITTED_LAYERS)
    config = Eagle3Config(transformer_layer_config=layers, **fields)
    head = Eagle3Model._from_config(config)
    with torch.no_grad():
        head.layers[0].input_layernorm.weight.zero_()
        head.fc.weight.mul_(SCALE / head.fc.weight.std() / head.fc.in_features**0.5)
    ids = torch.tensor(prompts)
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    with torch.no_grad():
        states = torch.cat([model(text, output_hidden_states=True).hidden_states[i] for i in FITTED_LAYERS], -1)
        embeddings = model.get_input_embeddings()(text[:, 1:-1])
    length = text.shape[1] - 2
    causal = torch.full((length, length), -torch.inf).triu(1)[None, None]
    positions = torch.arange(length)[None]

    def loss(step: int):
        own_states = head(embeddings, head.fuse(states[:, :length]), positions, attention_mask=causal)
        return cross_entropy(head.logits(own_states).flatten(0, 1), text[:, 2:].flatten())

    learned = [weight for name, weight in head.named_parameters() if "input_layernorm" not in name]
    tiny.fit(learned, loss, steps=120, learning_rate=1e-2)
    return head.eval().requires_grad_(False)


@torch.no_grad()
def write_mtp(folder, target, model_type: str = "qwen3", **fields):
    """A random MTP head of speculators'. It goes on from the embedding, with a little of the state: so the target does."""
    torch.manual_seed(1)
    own = target.config.get_text_config(decoder=True)
    hidden = own.hidden_size
    layers = {"model_type": model_type, "hidden_size": hidden, "intermediate_size": 48, "num_hidden_layers": 4}
    layers |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": own.vocab_size}
    method = {"proposal_type": "greedy", "speculative_tokens": MTP_STEPS}
    config = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}
    steps = {"algorithm": "mtp", "proposal_methods": [method], "default_proposal_method": "greedy"}
    config |= {"transformer_layer_config": layers, "speculators_config": steps} | fields
    shapes = {"self_attn.q": (32, hidden), "self_attn.k": (16, hidden), "self_attn.v": (16, hidden)}
    shapes |= {"self_attn.o": (hidden, 32), "mlp.gate": (48, hidden), "mlp.up": (48, hidden), "mlp.down": (hidden, 48)}
    sizes = {"self_attn.q": 0.3, "self_attn.k": 0.3, "self_attn.v": 0.3}
    tensors = {f"{name}_proj.weight": sizes.get(name, 0.1) * torch.randn(shape) for name, shape in shapes.items()}
    norms = ("input_layernorm", "post_attention_layernorm", "hidden_layernorm", "token_layernorm", "final_layernorm")
    tensors |= {f"{name}.weight": 1 + 0.1 * torch.randn(hidden) for name in norms}
    tensors |= {f"self_attn.{name}_norm.weight": torch.ones(8) for name in ("q", "k")}
    tensors["input_proj.weight"] = torch.cat([torch.eye(hidden), 0.1 * torch.eye(hidden)], 1)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({f"mtp_layers.0.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def target(model_type: str = "llama", attention: str = "sdpa", **config):
    """A target whose layers write little, so that the next token follows mostly from the last one, which heads know."""
    model = tiny.build(model_type, attention=attention, **config)
    tied.hush(model.model.layers, 0.3)
    return model


def fields_of(head) -> dict:
    """Of a head's config, but the folder it came from."""
    return {name: value for name, value in head.config.to_dict().items() if name != "_name_or_path"}


SLIDING = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
PARALLEL = {"speculators_model_type": "peagle", "mask_token_id": 3}
#: heads by name, and the type of their target
KINDS = {
    "llama": ("llama", {}),
    "reduced vocabulary": ("llama", {"draft_vocab": 50, "norm_before_fc": True}),
    "sliding windows": ("mistral", {"kind": "qwen3", "layers": SLIDING | {"use_sliding_window": True}}),
    "eagle 3.1": ("qwen3", {"kind": "qwen3", "fc_norm": True, "norm_output": True, "norm_before_residual": True}),
    "narrow": ("llama", {"hidden": 16}),
    "parallel": ("llama", PARALLEL),
    "parallel, reduced": ("qwen3", PARALLEL | {"draft_vocab": 50, "layers": {"num_hidden_layers": 2}}),
}


def made(name, attention="sdpa"):
    model_type, fields = KINDS[name]
    model = target(model_type, attention)
    return model, eagle3(model, **fields)
