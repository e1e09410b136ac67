"""Time of rollouts over plain ones: `generate` of a policy in training mode, as TRL calls it, runs of all ways interleaved.

python examples/bench/rollouts.py --batch-size 8 --temperature 0.7
python examples/bench/rollouts.py --temperature 0.7 --long-tail   # log-normal lengths, 11 to 150 tokens
"""

import statistics
import time
import warnings
from typing import Annotated

import torch
import typer
from transformers import LogitsProcessor, LogitsProcessorList

import hf_speculative as hs

PROMPTS = ("def read(path):\n", "import os\n", "class Node:\n", "for name in names:\n")
OTHERS = ("def write(self):\n", "import sys\n", "class Leaf:\n", "try:\n")
#: quantiles of a log-normal distribution: median 31, sigma 0.8
LENGTHS = (11, 16, 22, 28, 35, 48, 75, 150)


class Lengths(LogitsProcessor):
    """Each prompt's text ends at a length of its own, as it is rolled out."""

    def __init__(self, prompts: torch.Tensor, eos: int):
        self.width, self.eos = prompts.shape[1], eos
        self.lengths = dict(zip(map(tuple, prompts.tolist()), LENGTHS, strict=True))

    def __call__(self, input_ids, scores):
        lengths = [self.lengths[tuple(row)] for row in input_ids[:, : self.width].tolist()]
        ends = torch.tensor([input_ids.shape[1] - self.width >= n for n in lengths])[:, None]
        is_eos = torch.arange(scores.shape[1]) == self.eos
        return scores.masked_fill(ends != is_eos, -torch.inf)


def main(
    batch_size: Annotated[int, typer.Option(help="Rows, 4 of each prompt where there are more than 8.")] = 8,
    temperature: Annotated[float, typer.Option()] = 1.0,
    long_tail: Annotated[bool, typer.Option("--long-tail", help="Rows of log-normal lengths.")] = False,
    repeats: Annotated[int, typer.Option(help="Runs of each way, after 3 that do not count.")] = 7,
):
    """Print each way's time over plain rollouts: the median of ratios, and the passes of the target."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _, draft, tokenizer = hs.embedded_pair()
    head = hs.embedded_pair(head=True)[1]
    prompts = [*PROMPTS, *OTHERS] if long_tail else [PROMPTS[i * len(PROMPTS) // batch_size] for i in range(batch_size)]
    inputs = dict(tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left"))
    settings = {"do_sample": True, "temperature": temperature, "top_k": 0, "max_new_tokens": 150 if long_tail else 48}
    if long_tail:
        eos = tokenizer.eos_token_id
        processors = LogitsProcessorList([Lengths(inputs["input_ids"], eos)])
        settings |= {"logits_processor": processors, "eos_token_id": eos, "pad_token_id": eos}
    ways = {"plain": None, "plain again": None, "head": {}, "head, 2 tokens": {"num_draft_tokens": 2}}
    ways |= {"head, 4 tokens": {"num_draft_tokens": 4}, "draft model": {}}
    models = {name: hs.embedded_pair()[0].train() for name in ways}
    for name, options in ways.items():
        if options is not None:
            hs.attach(models[name], draft if name == "draft model" else head, **options)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    passes: dict[str, list[int]] = {name: [] for name in ways}
    for i in range(repeats + 3):
        for name, model in models.items():
            torch.manual_seed(i)
            with hs.record() as stats:
                start = time.perf_counter()
                model.generate(**inputs, **settings)
            seconds[name].append(time.perf_counter() - start)
            passes[name].append(stats.num_target_forwards)
    for name, took in seconds.items():
        ratios = [ours / plain for ours, plain in zip(took[3:], seconds["plain"][3:], strict=True)]
        print(f"{name:16} {statistics.median(ratios):.2f} of plain, {statistics.mean(passes[name][3:]):.0f} passes")


if __name__ == "__main__":
    typer.run(main)
