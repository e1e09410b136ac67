"""A data set of prompts with answers of unequal length: rows replaced as they finish, against batches of a fixed set of rows.

python examples/compare_batching.py --prompts HumanEval.jsonl.gz --num-prompts 164 --batch-size 8 --repeats 3

Prints tokens per second, the median over interleaved repeats of the ratio to static batches with the draft, with its range, and
how many rows a target pass served. Rows end where the model ends them, at a stop string, or at `--max-new-tokens`.
transformers' `generate_batch` knows no stop strings, so tokens that it writes after one are not counted.
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
from transformers import ContinuousBatchingConfig, GenerationConfig

import hf_speculative as hs
from hf_speculative.command.prompts import BEGINNINGS
from hf_speculative.measuring.rows import read_prompts

BASELINE = "static, with a draft"


def main(
    prompts: Annotated[Path | None, typer.Option(help="A .txt, .jsonl or .jsonl.gz file of prompts.")] = None,
    column: Annotated[str, typer.Option("--field", help="The field that holds the prompt.")] = "prompt",
    num_prompts: Annotated[int, typer.Option(help="How many of them to use.")] = 64,
    batch_size: Annotated[int, typer.Option(help="Rows at a time.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of a row.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop strings. Default: two blank lines.")] = None,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 3,
    generate_batch: Annotated[bool, typer.Option(help="Also transformers' `generate_batch`.")] = False,
):
    """Compare refilled with static batches, with the embedded pair."""
    target, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    texts = [p for p in read_prompts(prompts, column) if isinstance(p, str)] if prompts else list(BEGINNINGS[:2])
    texts = texts[:num_prompts]
    stops = [text.encode().decode("unicode_escape") for text in stop or ["\\n\\n\\n"]]
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    settings = sampling | {"max_new_tokens": max_new_tokens, "stop_strings": stops, "tokenizer": tokenizer}

    def static(generate, **kwargs) -> int:
        num_tokens, remaining = 0, iter(texts)
        while batch := list(islice(remaining, batch_size)):
            inputs = tokenizer(batch, return_tensors="pt", padding=True)
            output = generate(**inputs, **settings, **kwargs)
            num_tokens += int((output[:, inputs["input_ids"].shape[1] :] != tokenizer.pad_token_id).sum())
        return num_tokens

    def refilled(**kwargs) -> int:
        rows = hs.generate_batches(target, texts, batch_size=batch_size, **settings, **kwargs)
        return sum(len(row.new_ids) for row in rows)

    def of_transformers() -> int:
        config = GenerationConfig(
            **sampling, max_new_tokens=max_new_tokens, eos_token_id=tokenizer.eos_token_id, pad_token_id=1
        )
        # Its own choice is a cache as large as the memory, which takes minutes to read on a CPU.
        blocks = {"num_blocks": 5 * batch_size, "max_batch_tokens": 512, "max_requests_per_batch": batch_size}
        outputs = target.generate_batch(
            [tokenizer(text).input_ids for text in texts],
            config,
            continuous_batching_config=ContinuousBatchingConfig(**blocks),
        )
        return sum(until_stop(output.generated_tokens) for output in outputs.values())

    def until_stop(tokens: list[int]) -> int:
        ends = (n for n in range(1, len(tokens)) if any(text in tokenizer.decode(tokens[:n]) for text in stops))
        return next(ends, len(tokens))

    methods = {
        "static, plain": lambda: static(target.generate),
        BASELINE: lambda: static(lambda **kwargs: hs.generate(target, **kwargs), draft_model=draft),
        "refilled, plain": refilled,
        "refilled, with a draft": lambda: refilled(draft_model=draft),
    }
    if generate_batch:
        methods["transformers' generate_batch"] = of_transformers
    speeds: dict[str, list[float]] = {name: [] for name in methods}
    served: dict[str, float] = {}
    for _ in track(range(repeats), description="repeats", transient=True, console=Console(stderr=True)):
        for name, run in methods.items():
            torch.manual_seed(len(speeds[name]))
            start = time.perf_counter()
            with hs.record() as stats:
                num_tokens = run()
            speeds[name].append(num_tokens / (time.perf_counter() - start))
            if stats.num_target_forwards:
                served[name] = stats.num_rounds / stats.num_target_forwards
    table = Table(title=f"{len(texts)} prompts, batches of {batch_size}, {repeats} repeats")
    for name in ("method", "tokens/s", f"over {BASELINE} (range)", "rows a pass"):
        table.add_column(name, justify="right")
    for name, own in speeds.items():
        ratios = [speed / base for speed, base in zip(own, speeds[BASELINE], strict=True)]
        spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        rows = f"{served[name]:.1f}" if name in served else ""
        table.add_row(name, f"{statistics.median(own):.0f}", spread, rows)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
