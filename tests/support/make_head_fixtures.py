"""The heads in tests/heads/fixtures: `python -m tests.support.make_head_fixtures` writes weights and inputs, from seeds.

What is kept as it was recorded: each config.json, and of expected.safetensors the numbers that the original code gave
(`OUTPUTS`). All else is drawn here in the order in which it was drawn then, so that those numbers belong to it. Parameters that
no file holds were drawn as well, and parts of the original models before the first one: their places in the stream are skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FIXTURES = Path(__file__).parents[1] / "heads" / "fixtures"
#: tensors of expected.safetensors that the original code computed, by their beginnings
OUTPUTS = (
    *("ttt", "prefill_", "chain_", "tree_"),
    *(f"round{index}_{what}" for index in range(2) for what in ("hidden", "logits", "greedy")),
)
SCALE, VOCABULARY, NUM_TOKENS, NUM_CONTEXT = 0.3, 64, 7, 9


class Stream:
    """Random numbers of a seed, one after another.

    Args:
        num_skipped: uniform ones, at the start.
        scales_after: weights were drawn and then scaled, which rounds once more where a tensor is small.
    """

    def __init__(self, seed: int, num_skipped: int = 0, scales_after: bool = False):
        self.scales_after = scales_after
        self.generator = torch.Generator().manual_seed(seed)
        torch.rand(num_skipped, generator=self.generator)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(shape).normal_(0, scale, generator=self.generator)

    def weights(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        if self.scales_after:
            return {name: self.normal(*shape) * SCALE for name, shape in shapes.items()}
        return {name: self.normal(*shape, scale=SCALE) for name, shape in shapes.items()}

    def ids(self, num: int, most: int = VOCABULARY) -> Tensor:
        return torch.randint(0, most, (1, num), generator=self.generator)

    def vocabulary(self, size: int) -> dict[str, Tensor]:
        """Which of the target's tokens a head of `size` of them can draft."""
        ids = torch.randperm(VOCABULARY, generator=self.generator)[:size].sort().values
        return {
            "d2t": ids - torch.arange(size),
            "t2d": torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True),
        }


def layer(prefix: str, config: dict, width: int, norms: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer whose attention reads `width` channels."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config.get("head_dim", 8)
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"q_proj": (q, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (hidden, q)}
    if config["model_type"] == "qwen3":
        shapes |= {"q_norm": (dim,), "k_norm": (dim,)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    names = {f"self_attn.{name}": shape for name, shape in shapes.items()}
    names |= {f"mlp.{name}": shape for name, shape in mlp.items()} | dict.fromkeys(norms, (hidden,))
    return {f"{prefix}.{name}.weight": shape for name, shape in names.items()}


NORMS = ("input_layernorm", "post_attention_layernorm")


def eagle(config: dict) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """EAGLE's layout, as SafeAILab's `cnets.Model` was filled."""
    stream, hidden, num_ids = Stream(0, 15616), config["hidden_size"], config["draft_vocab_size"]
    shapes = {"embed_tokens.weight": (VOCABULARY, hidden), "lm_head.weight": (num_ids, hidden)}
    shapes |= layer("midlayer", config, 2 * hidden, ("hidden_norm", *NORMS))
    shapes |= {"fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,)}
    tensors = stream.weights(shapes) | stream.vocabulary(num_ids)
    inputs = {"target_embed_tokens.weight": tensors.pop("embed_tokens.weight"), "tokens": stream.ids(NUM_TOKENS + 1)}
    return tensors, inputs | {"aux_hidden": stream.normal(1, NUM_TOKENS, 3 * hidden)}


def speculators(config: dict) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """speculators' layout, as its `Eagle3DraftModel` was filled."""
    layers, num_ids = config["transformer_layer_config"], config["draft_vocab_size"]
    stream, hidden = Stream(1, scales_after=True), layers["hidden_size"]
    shapes = {"embed_tokens.weight": (VOCABULARY, hidden), "lm_head.weight": (num_ids, hidden)}
    shapes |= {"verifier_lm_head.weight": (num_ids, hidden), "fc.weight": (hidden, 3 * hidden)}
    shapes |= layer("layers.0", layers, 2 * hidden, (*NORMS, "hidden_norm"))
    for index in range(1, layers["num_hidden_layers"]):
        shapes |= layer(f"layers.{index}", layers, hidden, NORMS)
    shapes |= {"norm.weight": (hidden,), "verifier_norm.weight": (hidden,)}
    if config["norm_before_fc"]:
        shapes["input_norm.weight"] = (3 * hidden,)
    if config["fc_norm"]:
        shapes |= {f"fc_norm.{index}.weight": (hidden,) for index in range(3)}
    tensors = stream.weights(shapes) | stream.vocabulary(num_ids)
    inputs = {"aux_hidden": stream.normal(1, NUM_TOKENS, 3 * hidden), "shifted_tokens": stream.ids(NUM_TOKENS)}
    inputs["verifier_embed_tokens.weight"] = tensors["embed_tokens.weight"]
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("verifier_")}, inputs


def z_lab(config: dict) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """z-lab's layout, as the models of the package `dflash` were filled."""
    own, hidden = config["dflash_config"], config["hidden_size"]
    is_second = "selector_rank" in own
    stream = Stream(0, 60928 if is_second else 52224)
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(config["num_hidden_layers"]):
        shapes |= layer(f"layers.{index}", config, hidden, NORMS)
        for branch in ("attention_conv", "mlp_conv") if is_second else ():
            taps = own["conv_kernel_size"]
            shapes[f"layers.{index}.{branch}.base_kernel"] = (2, taps, hidden)
            groups = hidden // own["conv_group_size"]
            shapes[f"layers.{index}.{branch}.kernel_projection.weight"] = (2 * taps * groups, hidden)
    shapes |= {"norm.weight": (hidden,), "fc.weight": (hidden, 3 * hidden), "hidden_norm.weight": (hidden,)}
    if is_second:
        rank = own["selector_rank"]
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector.{name}_codebook.weight"] = (VOCABULARY, rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    tensors = stream.weights(shapes)
    stream.normal(2, VOCABULARY, hidden)  # the target's, before they were filled
    parts = stream.weights(dict.fromkeys(("target_lm_head.weight", "target_embed_tokens.weight"), (VOCABULARY, hidden)))
    inputs = parts | {"context_hidden": stream.normal(1, NUM_CONTEXT, 3 * hidden)}
    for index in range(2):
        masks = torch.full((1, config["block_size"] - 1), own["mask_token_id"])
        inputs[f"round{index}_block_ids"] = torch.cat([stream.ids(1, own["mask_token_id"]), masks], 1)
    return tensors, inputs


def made() -> Iterator[tuple[Path, dict[str, Tensor], dict[str, Tensor]]]:
    """Each fixture's folder, its weights, and its inputs."""
    for path in sorted(FIXTURES.glob("*/config.json")):
        config = json.loads(path.read_text())
        kinds = {"speculators_model_type": speculators, "dflash_config": z_lab}
        kind = next((make for field, make in kinds.items() if field in config), eagle)
        yield path.parent, *kind(config)


def main() -> None:
    for folder, tensors, inputs in made():
        recorded = load_file(folder / "expected.safetensors")
        outputs = {name: tensor for name, tensor in recorded.items() if name.startswith(OUTPUTS)}
        metadata = None if "midlayer.hidden_norm.weight" in tensors else {"format": "pt"}
        save_file(tensors, folder / "model.safetensors", metadata=metadata)
        save_file(
            {name: tensor.clone() for name, tensor in (inputs | outputs).items()}, folder / "expected.safetensors"
        )
        print(f"wrote {folder.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
