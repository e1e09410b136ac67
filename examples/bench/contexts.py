"""Decode behind texts of more and more tokens: the first token and later ones, with a window of the draft and without.

python examples/bench/contexts.py [--contexts 1024,16384,32768] [--window 1024]
python examples/bench/contexts.py --real --contexts 1024,4096,7680 [--window 512]

The pair has eight and two layers of width 256 and random weights (`calibrated.py`). With --real, SmolLM2 reads the source of
the standard library and is its own draft: that tells what a window costs in acceptance, but no speed.
"""

from __future__ import annotations

import argparse as text_of_source
import copy
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from calibrated import CalibratedPair
from shapes import Shape
from transformers import PreTrainedModel
from transformers.generation import BaseStreamer

import hf_speculative as hs

LAYERS = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4}
LAYERS |= {"num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 131072}
NUM_DRAFT = 4


class Clock(BaseStreamer):
    """Seconds until the first tokens, and until the last ones."""

    def __init__(self):
        self.begun, self.steps = time.perf_counter(), list[float]()

    def put(self, value):
        self.steps.append(time.perf_counter() - self.begun)

    def end(self):
        """Nothing is left over."""

    @property
    def first(self) -> float:
        return self.steps[1]  # behind the prompt

    @property
    def later(self) -> float:
        return self.steps[-1] - self.first


def run(target: PreTrainedModel, ids: torch.Tensor, num_tokens: int, **kwargs) -> tuple[Clock, Any]:
    """A call, and its statistics; without a `draft_model`, that of transformers. Greedy calls would copy from the text."""
    call = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    decode = hs.generate if "draft_model" in kwargs else type(target).generate
    clock = Clock()
    with hs.record() as statistics:
        decode(target, ids, attention_mask=torch.ones_like(ids), streamer=clock, **call, **kwargs)
    return clock, statistics


def main(
    contexts: Annotated[str, typer.Option(help="Tokens of the text, with commas.")] = "1024,16384,32768",
    window: Annotated[int, typer.Option(help="`draft_window`.")] = 1024,
    new_tokens: Annotated[int, typer.Option(help="Tokens of each call.")] = 64,
    repeats: Annotated[int, typer.Option(help="Calls of each kind, in turn.")] = 3,
    real: Annotated[bool, typer.Option("--real", help="SmolLM2 as the draft of SmolLM2.")] = False,
):
    """Print a Markdown table."""
    windowed = hs.SpeculativeConfig(draft_window=window)
    if real:
        target, _, tokenizer = hs.example_pair()
        source = Path(text_of_source.__file__).read_text(encoding="utf-8")
        ids = tokenizer(source, return_tensors="pt").input_ids
        draft = copy.deepcopy(target)
        print(f"| tokens | accepted | accepted, window of {window} |\n|---|---|---|")
        for context in map(int, contexts.split(",")):
            rates = []
            for config in (None, windowed):
                given = {} if config is None else {"speculative_config": config}
                _, found = run(target, ids[:, :context], new_tokens, draft_model=draft, num_draft_tokens=NUM_DRAFT, **given)
                rates.append(f"{found.draft_acceptance_rate:.2f}")
            print("|", " | ".join([str(context), *rates]), "|", flush=True)
        return
    pair = CalibratedPair(Shape("long", "llama", 2, "nothing", LAYERS), dtype=torch.float32)
    kinds: dict[str, tuple[float, dict[str, Any]]] = {
        "plain": (0.8, {}),
        "draft": (0.8, {"draft_model": pair.draft, "num_draft_tokens": NUM_DRAFT}),
        "window": (0.8, {"draft_model": pair.draft, "num_draft_tokens": NUM_DRAFT, "speculative_config": windowed}),
        "plain of the other": (0.0, {}),
        "never right": (0.0, {"draft_model": pair.draft}),
    }
    print(
        "| tokens | first token, s | with a draft | with a window | a later token, ms | with a draft | with a window ", end=""
    )
    print("| accepted | with a window | never right |\n" + "|---" * 10 + "|")
    for context in map(int, contexts.split(",")):
        ids, clocks, rates = pair.prompts(1, context), dict[str, list[Clock]](), dict[str, float]()
        for _ in range(repeats):
            for name, (acceptance, given) in kinds.items():
                pair.prepare(acceptance, temperature=1.0)
                clock, found = run(pair.target, ids, new_tokens, **given)
                clocks.setdefault(name, []).append(clock)
                if given:
                    rates[name] = found.draft_acceptance_rate
        first = {name: median(clock.first for clock in own) for name, own in clocks.items()}
        later = {name: median(clock.later for clock in own) for name, own in clocks.items()}
        cells = [f"{first['plain']:.1f}", *(f"{first[name] / first['plain']:.2f}x" for name in ("draft", "window"))]
        cells += [f"{1e3 * later['plain'] / (new_tokens - 1):.0f}"]
        cells += [f"{later['plain'] / later[name]:.2f}x" for name in ("draft", "window")]
        cells += [f"{rates[name]:.2f}" for name in ("draft", "window")]
        cells += [f"{later['plain of the other'] / later['never right']:.2f}x"]
        print("|", " | ".join([str(context), *cells]), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
