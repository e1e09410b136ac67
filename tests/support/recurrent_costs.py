"""`python -m tests.support.recurrent_costs`: passes over 5 columns in plain steps, calls over plain ones, by kind of layer."""

import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import hf_speculative as hs
from hf_speculative.models import RaggedModel
from hf_speculative.types import Batch
from tests.support import tiny

SIZES = {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "eos_token_id": None}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.08, "pad_token_id": 0}
DELTA = {f"linear_{name}_heads": 4 for name in ("num_key", "num_value")} | {
    f"linear_{name}_head_dim": 64 for name in ("key", "value")
}
MAMBA = {"layer_types": ["mamba", "mamba", "mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 64}
TYPES = {
    "llama": {},
    "qwen3_5_text": DELTA | {"head_dim": 64},
    "granitemoehybrid": MAMBA | {"mamba_d_state": 32, "num_local_experts": 0, "shared_intermediate_size": 512},
    "lfm2": {"layer_types": ["conv", "conv", "conv", "full_attention"] * 2, "block_ff_dim": 512},
    "jamba": {"num_experts": 1, "attn_layer_period": 4, "attn_layer_offset": 3, "expert_layer_period": 100},
}


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@torch.no_grad()
def costs_of_a_pass(model, num_rows: int) -> tuple[float, float]:
    """Of 5 columns in plain steps: as this package runs them, rollback included, and as transformers does."""
    ids, width = torch.randint(5, 499, (num_rows, 400)), 32
    batch, cached = Batch(ids[:, :width], [0] * num_rows, 400), RaggedModel(model)
    cached.logits(batch, ahead=0, num_last=1)
    for_five, for_one = DynamicCache(config=model.config), DynamicCache(config=model.config)
    for cache in (for_five, for_one):
        model(ids[:, :width], past_key_values=cache)
    times: list[tuple[float, ...]] = []

    def ours():
        cached.logits(batch, ahead=4, num_last=5)
        cached.rollback(batch)

    for _ in range(20):
        batch.put(ids[:, :5])
        batch.lengths, batch.host_lengths = batch.lengths + 1, [length + 1 for length in batch.host_lengths]
        five = seconds(lambda: model(ids[:, :5], past_key_values=for_five))
        times.append((seconds(ours), five, seconds(lambda: model(ids[:, :1], past_key_values=for_one))))
    stepped, chunked, plain = (statistics.median(one) for one in zip(*times[4:], strict=True))
    return stepped / plain, chunked / plain


def cost_of_a_call(model, inputs: dict[str, torch.Tensor]) -> tuple[float, hs.Statistics]:
    """The target's passes in 64 new tokens over plain's whole call, and what there was of them."""
    draft, call = tiny.noisy_copy(model, 0.02), inputs | {"max_new_tokens": 64, "do_sample": False}
    ours, plain = [], []
    for _ in range(5):
        plain.append(seconds(lambda: model.generate(**call)))
        with hs.record() as stats:
            hs.generate(model, **call, draft_model=draft, num_draft_tokens=4)
        ours.append(stats.seconds["verify"])
    return statistics.median(ours[1:]) / statistics.median(plain[1:]), stats


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, more in TYPES.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES | more)).eval()
        for num_rows in (1, 8):
            stepped, chunked = costs_of_a_pass(model, num_rows)
            whole, stats = cost_of_a_call(model, {"input_ids": torch.randint(5, 499, (num_rows, 16))})
            calls = f"{stats.num_target_forwards} passes, {whole:.2f} of plain"
            print(f"{name}, batch {num_rows}: {stepped:.2f} and {chunked:.2f} steps; {calls}", flush=True)
