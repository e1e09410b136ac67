"""Encoder-decoder models of realistic depth, T5's and Whisper's: plain `generate` and hf_speculative, interleaved in one run.

python examples/compare_encoder_decoder.py --repeats 5

The weights are random, so nothing is downloaded. It samples, each repeat under its own seed, since random
weights repeat themselves under greedy decoding. The draft is a noisy copy of the target's first decoder layers and shares its
encoder, as distil-whisper does; the target's other decoder layers write little, so that the two agree about as often as a
distilled draft does. Prints the acceptance and the median over repeats of the ratio of times, with its range.
"""

import copy
import statistics
import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration, WhisperConfig, WhisperForConditionalGeneration, set_seed

import hf_speculative as hs

NUM_LAYERS, WIDTH, VOCAB = 12, 512, 8192
#: an acceptance near .8 to .9: T5 begins with layers that write much less than its embeddings
SCALES = {"T5": 8.0, "Whisper": 0.1}
OUTPUT_PROJECTIONS = ("o", "wo", "out_proj", "fc2")


def t5() -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=64,
        d_ff=4 * WIDTH,
        num_layers=NUM_LAYERS,
        num_heads=8,
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def whisper() -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=NUM_LAYERS,
        decoder_layers=NUM_LAYERS,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        max_source_positions=300,
        tie_word_embeddings=False,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config)


@torch.no_grad()
def pair(make, num_draft_layers: int, scale: float, noise: float):
    """A random target and a draft made of its first decoder layers."""
    torch.manual_seed(0)
    target = make().eval()
    decoder, head = target.get_decoder(), target.get_output_embeddings()
    layers = decoder.block if hasattr(decoder, "block") else decoder.layers
    head.weight.normal_(std=0.5)  # logits of random weights are nearly equal otherwise, and greedy decoding a lottery
    decoder.get_input_embeddings().weight.normal_()
    for layer in layers[num_draft_layers:]:
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in OUTPUT_PROJECTIONS:
                module.weight.mul_(scale)
    draft = copy.deepcopy(target)
    part = draft.get_decoder()
    setattr(part, "block" if hasattr(part, "block") else "layers", nn.ModuleList(list(layers_of(part))[:num_draft_layers]))
    name = "num_decoder_layers" if hasattr(draft.config, "num_decoder_layers") else "decoder_layers"
    for config in (draft.config, part.config):
        setattr(config, name, num_draft_layers)
        config.num_hidden_layers = num_draft_layers
    for weight in layers_of(part).parameters():
        if weight.ndim > 1:
            weight.add_(torch.randn_like(weight) * noise * weight.std())
    if hasattr(draft, "model"):
        draft.model.encoder = target.model.encoder
    else:
        draft.encoder = target.encoder
    return target, draft


def layers_of(decoder) -> nn.ModuleList:
    return decoder.block if hasattr(decoder, "block") else decoder.layers


def main(
    num_draft_layers: Annotated[int, typer.Option(help="Decoder layers of the draft, of 12.")] = 2,
    scale: Annotated[
        float | None, typer.Option(help="How much the target's other layers write; by default as in SCALES.")
    ] = None,
    noise: Annotated[float, typer.Option(help="Noise on the draft's layers, in standard deviations.")] = 0.02,
    num_draft_tokens: Annotated[int, typer.Option(help="Tokens to draft a round.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 96,
    batch_size: Annotated[list[int] | None, typer.Option(help="May be given more than once; by default 1 and 4.")] = None,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 5,
):
    """Compare plain and speculative decoding of encoder-decoder pairs."""
    table = Table(title=f"{NUM_LAYERS} layers of {WIDTH}, {max_new_tokens} new tokens, {num_draft_tokens} draft tokens")
    for name in ("model", "batch", "plain tokens/s", "accepted", "speedup over plain (range)", "identical"):
        table.add_column(name, justify="right")
    for model_name, make in (("T5", t5), ("Whisper", whisper)):
        target, draft = pair(make, num_draft_layers, SCALES[model_name] if scale is None else scale, noise)
        for size in batch_size or [1, 4]:
            generator = torch.Generator().manual_seed(size)
            if model_name == "T5":
                inputs = {"input_ids": torch.randint(1, VOCAB, (size, 32), generator=generator)}
            else:
                inputs = {"input_features": torch.randn(size, target.config.num_mel_bins, 600, generator=generator)}
            # Read once: what is compared is decoding.
            inputs["encoder_outputs"] = target.get_encoder()(next(iter(inputs.values())))
            settings = inputs | {"max_new_tokens": max_new_tokens, "do_sample": True, "top_k": 0, "eos_token_id": None}
            ratios, seconds = [], []
            for repeat in track(
                range(repeats + 1), f"{model_name}, batch {size}", transient=True, console=Console(stderr=True)
            ):
                set_seed(repeat)
                start = time.perf_counter()
                expected = target.generate(**settings)
                plain = time.perf_counter() - start
                set_seed(repeat)
                start = time.perf_counter()
                with hs.record() as stats:
                    found = hs.generate(
                        target, **settings, draft_model=draft, num_draft_tokens=num_draft_tokens, reproducible=True
                    )
                if repeat:  # the first is the warm-up
                    ratios.append(plain / (time.perf_counter() - start))
                    seconds.append(plain)
            speed = size * max_new_tokens / statistics.median(seconds)
            spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            same = f"{sum(a == b for a, b in zip(found.tolist(), expected.tolist(), strict=True))} of {size}"
            table.add_row(model_name, str(size), f"{speed:.0f}", f"{stats.draft_acceptance_rate:.1%}", spread, same)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
