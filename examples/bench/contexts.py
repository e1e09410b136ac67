"""Decode behind texts of more and more tokens: the first token and later ones, with a window of the draft and without.

python examples/bench/contexts.py [--contexts 1024,8192,16384] [--window 1024]
python examples/bench/contexts.py --real --contexts 1024,4096,7680 [--window 512]
python examples/bench/contexts.py --rows 8 --contexts 512,2048,4096

The pair has eight and two layers of width 256 and random weights (`calibrated.py`). With --real, SmolLM2 reads the source of
the standard library and is its own draft: that tells what a window costs in acceptance, but no speed. With --rows, it reads
such a text in one row and questions in the others, without a draft, attached and not.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import itertools
import time
from statistics import median
from typing import Annotated, Any

import torch
import typer
from calibrated import CalibratedPair
from draft_length import Clock
from shapes import Shape
from transformers import PreTrainedModel

import hf_speculative as hs
from hf_speculative.command.prompts import QUESTIONS

LAYERS = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4}
LAYERS |= {"num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 131072}
NUM_DRAFT = 4


def run(
    target: PreTrainedModel, ids: torch.Tensor, num_tokens: int, mask: torch.Tensor | None = None, **kwargs
) -> tuple[float, float, Any]:
    """Seconds until the first tokens and after them, and statistics of a call; without a `draft_model`, of transformers' own.

    Greedy calls would copy from the text.
    """
    call = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    decode = hs.generate if "draft_model" in kwargs else type(target).generate
    clock, begun = Clock(), time.perf_counter()
    with hs.record() as statistics:
        decode(target, ids, attention_mask=torch.ones_like(ids) if mask is None else mask, streamer=clock, **call, **kwargs)
    _, first, *others = clock.steps  # behind the prompt
    return first - begun, others[-1] - first, statistics


def compare_rows(rows: int, contexts: list[int], new_tokens: int, repeats: int) -> None:
    """A long row among short ones."""
    target, _, tokenizer = hs.example_pair()
    tokenizer.padding_side = "left"
    hs.attach(target, optimize=True)
    source = tokenizer(inspect.getsource(argparse)).input_ids
    questions = [tokenizer(question).input_ids for question in itertools.islice(itertools.cycle(QUESTIONS), rows - 1)]
    print("| longest row | first token, s | speedup | a later step, ms | speedup |\n" + "|---" * 5 + "|")
    run(target, torch.tensor([source[:32]] * rows), 8, draft_model=None)  # warms up
    for context in contexts:
        inputs = tokenizer.pad({"input_ids": [source[:context], *questions]}, return_tensors="pt")
        seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "attached": []}
        for _ in range(repeats):
            for name, given in (("plain", {}), ("attached", {"draft_model": None})):
                *times, _ = run(target, inputs.input_ids, new_tokens, inputs.attention_mask, **given)
                seconds[name].append(tuple(times))
        (first, later), ours = ([median(part) for part in zip(*seconds[name], strict=True)] for name in seconds)
        cells = f"{first:.1f}", f"{first / ours[0]:.2f}x", f"{1e3 * later / (new_tokens - 1):.0f}", f"{later / ours[1]:.2f}x"
        print("|", " | ".join([str(context), *cells]), "|", flush=True)


def main(
    contexts: Annotated[str, typer.Option(help="Tokens of the text, with commas.")] = "1024,8192,16384",
    window: Annotated[int, typer.Option(help="`draft_window`.")] = 1024,
    new_tokens: Annotated[int, typer.Option(help="Tokens of each call.")] = 64,
    repeats: Annotated[int, typer.Option(help="Calls of each kind, in turn.")] = 3,
    real: Annotated[bool, typer.Option("--real", help="SmolLM2 as the draft of SmolLM2.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of SmolLM2, one of which is long.")] = 0,
):
    """Print a Markdown table."""
    if rows:
        compare_rows(rows, [int(context) for context in contexts.split(",")], new_tokens, repeats)
        return
    windowed = hs.SpeculativeConfig(draft_window=window)
    if real:
        target, _, tokenizer = hs.example_pair()
        ids = tokenizer(inspect.getsource(argparse), return_tensors="pt").input_ids
        draft = copy.deepcopy(target)
        print(f"| tokens | accepted | accepted, window of {window} |\n|---|---|---|")
        for context in map(int, contexts.split(",")):
            rates = []
            for config in (None, windowed):
                given = {} if config is None else {"speculative_config": config}
                *_, found = run(target, ids[:, :context], new_tokens, draft_model=draft, num_draft_tokens=NUM_DRAFT, **given)
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
        ids, rates = pair.prompts(1, context), dict[str, float]()
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(repeats):
            for name, (acceptance, given) in kinds.items():
                pair.prepare(acceptance, temperature=1.0)
                *times, found = run(pair.target, ids, new_tokens, **given)
                seconds[name].append(tuple(times))
                if given:
                    rates[name] = found.draft_acceptance_rate
        first, later = ({name: median(times[part] for times in own) for name, own in seconds.items()} for part in (0, 1))
        cells = [f"{first['plain']:.1f}", *(f"{first[name] / first['plain']:.2f}x" for name in ("draft", "window"))]
        cells += [f"{1e3 * later['plain'] / (new_tokens - 1):.0f}"]
        cells += [f"{later['plain'] / later[name]:.2f}x" for name in ("draft", "window")]
        cells += [f"{rates[name]:.2f}" for name in ("draft", "window")]
        cells += [f"{later['plain of the other'] / later['never right']:.2f}x"]
        print("|", " | ".join([str(context), *cells]), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
