"""Verify drafts with hybrids, ALiBi, encoders and other layouts, beside a Llama, on random weights and at equal acceptance.

python examples/bench/layouts.py --kinds llama,qwen3_5_text,granitemoehybrid --batch 1,8

Time is that of the target's passes, over plain `generate`'s whole call. The draft is a copy of the target with noise on its
weights, as much as gives the acceptance asked for.
"""

from __future__ import annotations

import copy
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, PreTrainedModel

import hf_speculative as hs

NUM_TOKENS, NUM_PROMPT, NUM_DRAFT = 64, 16, 4
SIZES = {"vocab_size": 500, "initializer_range": 0.08}
COMMON = SIZES | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
#: eight layers behind an encoder of two; of T5, whose cache transformers makes as deep as the encoder, of eight
OF_DECODER: dict[str, Any] = {
    "d_model": 256,
    "encoder_layers": 2,
    "decoder_layers": 8,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "init_std": 0.08,
}
#: three layers with states, then one that attends
MAMBA = ["mamba", "mamba", "mamba", "attention"] * 2
KINDS: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "qwen3_5_text": COMMON
    | {"head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 4}
    | {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "granitemoehybrid": COMMON
    | {"layer_types": MAMBA, "mamba_n_heads": 8, "mamba_d_state": 32, "mamba_d_head": 64}
    | {"num_local_experts": 0, "shared_intermediate_size": 512},
    "lfm2": COMMON | {"layer_types": ["conv", "conv", "conv", "full_attention"] * 2},
    "bloom": SIZES | {"hidden_size": 256, "n_layer": 8, "n_head": 4},
    "bart": OF_DECODER | {"vocab_size": 500, "max_position_embeddings": 256},
    "t5": {"vocab_size": 500, "d_model": 256, "d_kv": 64, "d_ff": 512, "num_heads": 4, "decoder_start_token_id": 0}
    | {"num_layers": 8, "initializer_factor": 2.0},
    "whisper": OF_DECODER
    | {"vocab_size": 500, "max_source_positions": NUM_PROMPT, "decoder_start_token_id": 1, "bos_token_id": 1}
    | {"max_target_positions": 256, "pad_token_id": 0, "suppress_tokens": None, "begin_suppress_tokens": None},
}
CLASSES = {"bart": AutoModelForSeq2SeqLM, "t5": AutoModelForSeq2SeqLM, "whisper": AutoModelForSpeechSeq2Seq}


def main(
    kinds: Annotated[str, typer.Option(help="Model types, with commas: " + ", ".join(KINDS))] = ",".join(KINDS),
    batch: Annotated[str, typer.Option(help="Rows, with commas.")] = "1,8",
    acceptance: Annotated[float, typer.Option(help="Of a draft token.")] = 0.5,
    repeats: Annotated[int, typer.Option(help="Runs of each, in turn.")] = 5,
):
    """Print a Markdown table: passes of the target, and their time over plain decoding, eagerly and compiled."""
    print("| type | batch | acceptance | passes | eager | compiled |\n|---|---|---|---|---|---|")
    for kind in kinds.split(","):
        target = made(kind)
        draft = calibrated(target, acceptance)
        for num_rows in map(int, batch.split(",")):
            inputs = prompts(target, num_rows)
            plain, eager, compiled = measured(target, draft, inputs, repeats)
            seconds = (f"{median(one.seconds['verify'] for one in runs) / plain:.2f}x" for runs in (eager, compiled))
            rate = f"{eager[0].draft_acceptance_rate:.2f}"
            print(
                "|",
                " | ".join([kind, str(num_rows), rate, str(eager[0].num_target_forwards), *seconds]),
                "|",
                flush=True,
            )


def made(kind: str) -> PreTrainedModel:
    """A model of this type without an end."""
    torch.manual_seed(0)
    model = CLASSES.get(kind, AutoModelForCausalLM).from_config(AutoConfig.for_model(kind, **KINDS[kind])).eval()
    model.generation_config.update(eos_token_id=None, pad_token_id=0, max_new_tokens=NUM_TOKENS, do_sample=False)
    model.generation_config.update(forced_eos_token_id=None, max_length=None)
    return model


def prompts(target: PreTrainedModel, num_rows: int) -> torch.Tensor:
    """Random ids, or the features of as long a recording."""
    generator = torch.Generator().manual_seed(1)
    if target.main_input_name == "input_features":
        return torch.randn(num_rows, target.config.num_mel_bins, 2 * NUM_PROMPT, generator=generator)
    return torch.randint(5, SIZES["vocab_size"], (num_rows, NUM_PROMPT), generator=generator)


def calibrated(target: PreTrainedModel, acceptance: float) -> PreTrainedModel:
    """A copy of `target` with noise: bisected until drafts are accepted as often as asked for."""
    low, high = 0.0, 0.5
    for _ in range(12):
        noise = (low + high) / 2
        draft, generator = copy.deepcopy(target), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in draft.parameters():
                weight += torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * noise
        found = run(target, draft, prompts(target, 8), optimize=False).draft_acceptance_rate
        if abs(found - acceptance) < 0.02:
            break
        if found > acceptance:
            low = noise
        else:
            high = noise
    return draft


def run(target: PreTrainedModel, draft: PreTrainedModel, inputs: torch.Tensor, optimize: bool):
    """The statistics of a call."""
    config = hs.SpeculativeConfig(optimize=optimize)
    with hs.record() as statistics:
        hs.generate(target, inputs, draft_model=draft, num_draft_tokens=NUM_DRAFT, speculative_config=config)
    return statistics


def measured(target: PreTrainedModel, draft: PreTrainedModel, inputs: torch.Tensor, repeats: int):
    """Median seconds of plain calls, and the statistics of eager and of compiled ones; all in turn, the first not counted."""
    plain, eager, compiled = [], [], []
    for _ in range(1 + repeats):
        begun = perf_counter()
        target.generate(inputs)
        plain.append(perf_counter() - begun)
        eager.append(run(target, draft, inputs, optimize=False))
        compiled.append(run(target, draft, inputs, optimize=True))
    return median(plain[1:]), eager[1:], compiled[1:]


if __name__ == "__main__":
    typer.run(main)
