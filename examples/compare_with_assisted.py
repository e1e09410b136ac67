"""Plain `generate`, transformers' assisted generation and hf_speculative on the same prompts, interleaved in one run.

python examples/compare_with_assisted.py --prompts HumanEval.jsonl.gz --num-prompts 20 --repeats 5

Prints, for each batch size, the median over repeats of the ratio of total times, with its range. Assisted generation takes
batches of one only.
"""

import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import hf_speculative as hs
from hf_speculative.command.prompts import BEGINNINGS
from hf_speculative.measuring.rows import read_prompts


def main(
    prompts: Annotated[Path | None, typer.Option(help="A .txt, .jsonl or .jsonl.gz file of prompts.")] = None,
    column: Annotated[str, typer.Option("--field", help="The field that holds the prompt.")] = "prompt",
    num_prompts: Annotated[int, typer.Option(help="How many of them to use.")] = 24,
    num_draft_tokens: Annotated[int, typer.Option(help="Draft length, the same for both.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 96,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    batch_size: Annotated[list[int] | None, typer.Option(help="May be given more than once; by default 1 and 8.")] = None,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 5,
):
    """Compare plain, assisted and speculative decoding with the embedded pair."""
    target, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    texts = list(islice((p for p in read_prompts(prompts, column) if isinstance(p, str)), num_prompts)) if prompts else []
    texts = texts or list(BEGINNINGS[:2])
    # The settings assisted generation reads, from the only place where it reads them: the same draft length, no early stop.
    draft.generation_config.num_assistant_tokens = num_draft_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    target.generation_config.eos_token_id = None  # every text has the same length, whoever writes it
    settings = sampling | {"max_new_tokens": max_new_tokens}

    methods = {
        "plain": lambda inputs: target.generate(**inputs, **settings),
        "assisted": lambda inputs: target.generate(**inputs, **settings, assistant_model=draft),
        "hf_speculative": lambda inputs: hs.generate(target, **inputs, **settings, draft_model=draft),
    }
    table = Table(
        title=f"{len(texts)} prompts, {max_new_tokens} new tokens, {num_draft_tokens} draft tokens, {repeats} repeats"
    )
    for name in ("batch", "method", "tokens/s", "speedup over plain (range)", "over assisted"):
        table.add_column(name, justify="right")
    for size in batch_size or [1, 8]:
        batches = [dict(tokenizer(texts[i : i + size], return_tensors="pt", padding=True)) for i in range(0, len(texts), size)]
        names = [name for name in methods if size == 1 or name != "assisted"]
        seconds = {name: [0.0] * repeats for name in names}
        for name in names:
            methods[name](batches[0])  # warm-up
        for repeat in track(range(repeats), description=f"batch {size}", transient=True, console=Console(stderr=True)):
            for i, batch in enumerate(batches):
                for name in names[i % len(names) :] + names[: i % len(names)]:
                    torch.manual_seed(repeat)
                    start = time.perf_counter()
                    methods[name](batch)
                    seconds[name][repeat] += time.perf_counter() - start
        for name in names:
            speed = len(texts) * max_new_tokens / statistics.median(seconds[name])
            ratios = [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)]
            over_assisted = ""
            if "assisted" in names:
                ours = [assisted / own for assisted, own in zip(seconds["assisted"], seconds[name], strict=True)]
                over_assisted = f"{statistics.median(ours):.2f}x"
            spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            table.add_row(str(size), name, f"{speed:.0f}", spread, over_assisted)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
