"""Heads of the DFlash family for the tests: files in each published layout, and what they compute, written down plainly.

The plain computation is for one row, without a cache and without any module of the package or of transformers.
"""

import json
import math
from functools import partial

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from hf_speculative.heads.dflash import DFlashHeadConfig
from tests.support import tied

RENAMED = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
LAYERS = (
    *("head_dim", "hidden_act", "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters"),
)
RANK, BLOCK = 4, 5
SCALES = {"input_embedding_scale": 0.9, "output_multiplier": 1.3, "final_logit_softcapping": 9.0}
DFLASH = {"speculators_model_type": "dflash"}
DFLASH2 = {"conv_group_size": 8, "selector_rank": RANK, "selector_top_k": 6}
THREE_TAPS = {"speculators_model_type": "dflash2", "conv_kernel_size": 3}
DSPARK = {"speculators_model_type": "dspark", "markov_rank": RANK}
DEEPSPEC = {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK, "markov_head_type": "vanilla"}
DEEPSPEC |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
GATED = {"markov_head_type": "gated", "enable_confidence_head": False}
RNN = {"markov_head_type": "rnn", "confidence_head_with_markov": False}
BOTH_WAYS = {"sliding_window_non_causal": True, "sample_from_anchor": True}
#: kinds of heads: layout, parts, fields. A window of 8 in transformers is one of 9 at z-lab
KINDS = {
    "z-lab": ("z-lab", (), {"is_causal": False}),
    "z-lab, causal windows": ("z-lab", (), {}),
    "JetSpec": ("z-lab", (), {"dflash_config": {"causal_head": True}}),
    "z-lab, scaled": ("z-lab", (), {"dflash_config": SCALES}),
    "DFlash 2": ("z-lab", ("convolutions", "selector"), {"dflash_config": DFLASH2 | {"conv_kernel_size": 2}}),
    "DeepSpec": ("z-lab", ("markov", "confidence"), DEEPSPEC),
    "speculators": ("speculators", (), DFLASH),
    "speculators, reduced": ("speculators", ("vocabulary",), DFLASH),
    "speculators, both ways": ("speculators", ("vocabulary",), DFLASH | BOTH_WAYS),
    "speculators, DFlash 2": ("speculators", ("convolutions", "selector"), DFLASH2 | THREE_TAPS),
    "DSpark": ("speculators", ("vocabulary", "markov", "confidence"), DSPARK),
    "DSpark, gated": ("speculators", ("vocabulary", "markov"), DSPARK | GATED),
    "DSpark, rnn": ("speculators", ("markov", "confidence"), DSPARK | RNN),
}


@torch.no_grad()
def write(kind: str, folder, target, draft, num_ids: int = 40) -> None:
    """The trained `draft` as a head of a `kind`, its additions random and small, so that it still agrees with `target`."""
    torch.manual_seed(2)
    layout, parts, fields = KINDS[kind]
    config, size, hidden = draft.config, target.config.vocab_size, draft.config.hidden_size
    fields = dict(fields)
    tensors = {RENAMED.get(name, name): tensor.clone() for name, tensor in draft.state_dict().items()}
    layers = {name: getattr(config, name) for name in LAYERS} | {"vocab_size": size, "use_sliding_window": True}
    block = {"block_size": config.block_size, "mask_token_id": config.mask_token_id}
    if layout == "z-lab":
        own = block | {"target_layer_ids": config.target_layer_ids} | fields.pop("dflash_config", {})
        given = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "num_target_layers": 2}
        given |= layers | {"sliding_window": config.sliding_window + 1}
        given |= (own if kind == "DeepSpec" else {"dflash_config": own}) | fields
    else:
        given = block | {
            "transformer_layer_config": layers | {"model_type": "qwen3", "sliding_window": config.sliding_window},
            "draft_vocab_size": num_ids if "vocabulary" in parts else size,
            "aux_hidden_state_layer_ids": [layer + 1 for layer in config.target_layer_ids],
            **fields,
        }
    num_ids = num_ids if "vocabulary" in parts else size
    if "vocabulary" in parts:
        ids = torch.randperm(size)[:num_ids].sort().values
        tensors["d2t"] = ids - torch.arange(num_ids)
        tensors["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, ids, True)
        tensors["lm_head.weight"] = target.lm_head.weight[ids].clone()
    if "convolutions" in parts:
        taps = (given | given.get("dflash_config", {}))["conv_kernel_size"]
        for index in range(config.num_hidden_layers):
            for branch in ("attention_conv", "mlp_conv"):
                name, first = f"layers.{index}.{branch}", torch.eye(taps)[0, :, None]
                tensors[f"{name}.base_kernel"] = first + 0.05 * torch.randn(2, taps, hidden)
                tensors[f"{name}.kernel_projection.weight"] = 0.03 * torch.randn(2 * taps * hidden // 8, hidden)
    if "selector" in parts:
        tensors["candidate_selector.hidden_projection.weight"] = 0.5 * torch.randn(RANK, hidden)
        for name in ("predecessor_codebook", "successor_codebook"):
            tensors[f"candidate_selector.{name}"] = 0.5 * torch.randn(size, RANK)
    if "markov" in parts:
        tensors["markov_head.markov_w1.weight"] = torch.randn(size, RANK)
        tensors["markov_head.markov_w2.weight"] = 0.5 * torch.randn(num_ids, RANK)
        inner = {"gated": ("gate_proj", hidden + RANK, RANK), "rnn": ("joint_proj", hidden + 2 * RANK, 3 * RANK)}
        if (extra := inner.get(given.get("markov_head_type"))) is not None:
            name, wide, narrow = extra
            tensors[f"markov_head.{name}.weight"] = 0.3 * torch.randn(narrow, wide)
            tensors[f"markov_head.{name}.bias"] = 0.3 * torch.randn(narrow)
    if "confidence" in parts:
        wide = hidden + (RANK if given.get("confidence_head_with_markov", True) else 0)
        tensors["confidence_head.proj.weight"] = 0.3 * torch.randn(1, wide)
        tensors["confidence_head.proj.bias"] = torch.zeros(1)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def pairs(steps: int = 45, **config) -> dict[bool, tuple]:
    """One target with two drafts trained for it, to be written in the layouts: whether the newest token's place predicts."""
    return {own: tied.with_dflash(BLOCK - own, steps=steps, first=1 - own, **config) for own in (False, True)}


def from_anchor(kind: str) -> bool:
    return KINDS[kind][2].get("sample_from_anchor", "DSpark" in kind or kind == "DeepSpec")


class PlainLayers:
    """Parts of a layer, of the tensors of a file."""

    def __init__(self, tensors, head_dim, eps=1e-6, theta=10000.0):
        self.tensors, self.head_dim, self.eps, self.theta = tensors, head_dim, eps, theta

    def norm(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.tensors[f"{name}.weight"]

    def linear(self, x, name):
        bias = self.tensors.get(f"{name}.bias")
        return x @ self.tensors[f"{name}.weight"].T + (0 if bias is None else bias)

    def rotated(self, x, positions):
        half = self.head_dim // 2
        angles = positions[:, None, None] * self.theta ** (-torch.arange(half) / half)
        one, other = x[..., :half], x[..., half:]
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)

    def attention(self, name, queries, keys, visible):
        """Of `queries`, which are the last of `keys`."""
        n, positions, head_dim = len(queries), torch.arange(len(keys)), self.head_dim
        parts = ((queries, "q"), (keys, "k"), (keys, "v"))
        q, k, v = (self.linear(x, f"{name}.{part}_proj").view(len(x), -1, head_dim) for x, part in parts)
        q, k = self.rotated(self.norm(q, f"{name}.q_norm"), positions[-n:]), self.norm(k, f"{name}.k_norm")
        groups = q.shape[1] // k.shape[1]
        k, v = self.rotated(k, positions).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
        attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
        return self.linear(attended.reshape(n, -1), f"{name}.o_proj")

    def mlp(self, name, x):
        gated = silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")
        return self.linear(gated, f"{name}.down_proj")


class Plain(PlainLayers):
    """What a head computes for one text, read from its files."""

    def __init__(self, folder, target):
        fields = json.loads((folder / "config.json").read_text())
        layers = fields.get("transformer_layer_config", fields)
        own = fields | fields.get("dflash_config", {})
        self.own, self.layers, self.is_speculators = own, layers, layers is not fields
        self.embed, self.head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
        kind, architectures = fields.get("speculators_model_type"), fields.get("architectures", [""])
        self.anchor = own.get("sample_from_anchor", kind == "dspark" or "DSpark" in architectures[0])
        self.is_dflash2 = kind == "dflash2"
        self.block_size, theta = own["block_size"], layers["rope_parameters"]["rope_theta"]
        super().__init__(load_file(folder / "model.safetensors"), layers["head_dim"], layers["rms_norm_eps"], theta)
        self.layer_ids = own.get("target_layer_ids") or [index - 1 for index in own["aux_hidden_state_layer_ids"]]

    def sees(self, kind, query, key, anchor) -> bool:
        """Whether the place at position `query` of the block that begins at `anchor` sees position `key`."""
        window = self.layers.get("sliding_window") if kind == "sliding_attention" else None
        if self.is_speculators:
            both_ways = self.own.get("sliding_window_non_causal", self.is_dflash2) or window is None
            return key >= anchor - (window or 10**6) and (both_ways or key <= query)
        is_causal = self.own.get("causal_head") or self.own.get("is_causal")
        if is_causal is None:
            is_causal = kind == "sliding_attention"
        far = window is not None and (query - key >= window or key - query >= window)
        return not far and (not is_causal or key <= query)

    def convolved(self, x, name):
        """Both convolutions of a branch, as functions of what they convolve."""
        base = self.tensors.get(f"{name}.base_kernel")
        if base is None:
            return (lambda y: y), (lambda y: y)
        taps = self.linear(x, f"{name}.kernel_projection").view(len(x), 2, base.shape[1], -1)

        def convolution(which, y):
            out = torch.zeros_like(y)
            for t in range(len(y)):
                for back in range(min(t + 1, base.shape[1])):
                    dynamic = taps[t, which, back].repeat_interleave(y.shape[1] // taps.shape[3])
                    out[t] += (base[which, back] + dynamic) * y[t - back]
            return out

        return partial(convolution, 0), partial(convolution, 1)

    def states(self, context, newest: int):
        """Of the block after `context (n, layers * hidden)`: `(block, hidden)`."""
        n, size = len(context), self.block_size
        context = self.norm(self.linear(context, "fc"), "hidden_norm")
        ids = torch.full((size,), self.own["mask_token_id"])
        ids[0] = newest
        x = self.embed[ids] * self.own.get("input_embedding_scale", 1.0)
        for index, kind in enumerate(self.layers["layer_types"]):
            name = f"layers.{index}"
            y = self.norm(x, f"{name}.input_layernorm")
            before, after = self.convolved(y, f"{name}.attention_conv")
            y = before(y)
            visible = torch.tensor([[self.sees(kind, n + i, j, n) for j in range(n + size)] for i in range(size)])
            x = x + after(self.attention(f"{name}.self_attn", y, torch.cat([context, y]), visible))
            y = self.norm(x, f"{name}.post_attention_layernorm")
            before, after = self.convolved(y, f"{name}.mlp_conv")
            x = x + after(self.mlp(f"{name}.mlp", before(y)))
        return self.norm(x, "norm")

    def logits(self, context, newest: int, drafted) -> torch.Tensor:
        """`(places, target vocabulary)` of the places that predict, each after those tokens of `drafted` that stand before."""
        states = self.states(context, newest)[0 if self.anchor else 1 :]
        out, memory = [], torch.zeros(RANK)
        for state, previous in zip(states, [newest, *drafted], strict=False):
            scores = self.tensors.get("lm_head.weight", self.head) @ state * self.own.get("output_multiplier", 1.0)
            if cap := self.own.get("final_logit_softcapping"):
                scores = cap * torch.tanh(scores / cap)
            if "candidate_selector.hidden_projection.weight" in self.tensors:
                kept = scores.topk(self.own["selector_top_k"]).indices
                factor = self.tensors["candidate_selector.predecessor_codebook"][previous]
                factor = factor * self.linear(state, "candidate_selector.hidden_projection")
                bonus = self.tensors["candidate_selector.successor_codebook"] @ factor
                scores = torch.full_like(scores, -torch.inf).index_copy(0, kept, (scores + bonus)[kept])
            if "markov_head.markov_w1.weight" in self.tensors:
                latent = self.tensors["markov_head.markov_w1.weight"][previous]
                kind = self.own.get("markov_head_type", "vanilla")
                if kind == "gated":
                    latent = torch.sigmoid(self.linear(torch.cat([state, latent]), "markov_head.gate_proj")) * latent
                elif kind == "rnn":
                    joint = self.linear(torch.cat([memory, latent, state]), "markov_head.joint_proj")
                    gate, candidate, output = joint.view(3, -1)
                    memory = torch.sigmoid(gate) * memory + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
                    latent = torch.tanh(output)
                scores = scores + self.linear(latent, "markov_head.markov_w2")
            if "d2t" in self.tensors:
                ids = self.tensors["d2t"] + torch.arange(len(scores))
                scores = torch.full((len(self.head),), -torch.inf).index_copy(0, ids, scores)
            out.append(scores)
        return torch.stack(out)

    def confidences(self, context, newest: int, drafted) -> torch.Tensor:
        """`(places,)` in logits."""
        states = self.states(context, newest)[0 if self.anchor else 1 :]
        if self.own.get("confidence_head_with_markov", True):
            before = self.tensors["markov_head.markov_w1.weight"][torch.tensor([newest, *drafted])[: len(states)]]
            states = torch.cat([states[: len(before)], before], 1)
        return self.linear(states, "confidence_head.proj")[:, 0]


def told(head) -> dict:
    """What a head's config says of its block, in whichever class."""
    config = DFlashHeadConfig.of(head.config)
    names = (*DFlashHeadConfig.__annotations__, "block_size", "mask_token_id", "target_layer_ids", "sliding_window")
    return {name: getattr(config, name) for name in names}
