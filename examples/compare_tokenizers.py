"""What another tokenizer costs: the embedded pair with one tokenizer, and with its draft under shuffled ids.

python examples/compare_tokenizers.py --prompts HumanEval.jsonl.gz --num-prompts 12

The draft knows the same either way, so any difference comes from the mapping between vocabularies. Times are processor times on
one thread, which other work on the machine hardly changes.
"""

import copy
import json
import random
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import hf_speculative as hs
from hf_speculative.command.prompts import BEGINNINGS
from hf_speculative.measuring.rows import read_prompts


def shuffled(draft, tokenizer):
    """The same draft and tokenizer under other ids."""
    order = random.Random(0).sample(range(len(tokenizer)), len(tokenizer))
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["model"]["vocab"] = {token: order[index] for token, index in data["model"]["vocab"].items()}
    for token in data["added_tokens"]:
        token["id"] = order[token["id"]]
    fast = Tokenizer.from_str(json.dumps(data))
    other = copy.deepcopy(draft)
    with torch.no_grad():  # its output weights are tied to these
        other.get_input_embeddings().weight[order] = draft.get_input_embeddings().weight.clone()
    return other, PreTrainedTokenizerFast(tokenizer_object=fast, **tokenizer.special_tokens_map)


def main(
    prompts: Annotated[Path | None, typer.Option(help="A .txt, .jsonl or .jsonl.gz file of prompts.")] = None,
    num_prompts: Annotated[int, typer.Option(help="How many of them to use.")] = 12,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 96,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Prompts a batch.")] = 1,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats, after one to warm up.")] = 4,
):
    """Compare drafting with one tokenizer and with two."""
    torch.set_num_threads(1)
    target, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    texts = list(islice(read_prompts(prompts, "prompt"), num_prompts)) if prompts else list(BEGINNINGS[:2])
    other, draft_tokenizer = shuffled(draft, tokenizer)
    methods = {"plain": {"draft_model": None}, "one tokenizer": {"draft_model": draft}}
    for mapping in ("intersection", "strings"):
        config = hs.SpeculativeConfig(vocabulary_mapping=mapping, tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)
        methods[mapping] = {"draft_model": other, "speculative_config": config}
    settings = {"do_sample": temperature > 0, "max_new_tokens": max_new_tokens}
    settings |= {"temperature": temperature, "top_k": 0} if temperature else {}
    seconds = {name: [0.0] * (repeats + 1) for name in methods}
    counts = {name: hs.Statistics() for name in methods}
    for start in range(0, len(texts), batch_size):
        inputs = dict(tokenizer(texts[start : start + batch_size], return_tensors="pt", padding=True))
        for repeat in range(repeats + 1):
            for name, method in methods.items():
                torch.manual_seed(repeat)
                length = {} if method["draft_model"] is None else {"num_draft_tokens": 4}
                with hs.record() as stats:
                    before = time.process_time()
                    hs.generate(target, **inputs, **settings, **method, **length)
                    seconds[name][repeat] += time.process_time() - before
                counts[name] += stats
    table = Table(title=f"{len(texts)} prompts, batches of {batch_size}, {max_new_tokens} tokens, temperature {temperature}")
    for column in ("method", "time over one tokenizer (range)", "speedup over plain", "accepted", "mean length"):
        table.add_column(column, justify="right")
    for name in methods:
        own, one, plain = (seconds[method][1:] for method in (name, "one tokenizer", "plain"))
        ratios = [a / b for a, b in zip(own, one, strict=True)]
        figures = counts[name]
        table.add_row(
            name,
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            f"{statistics.median(plain) / statistics.median(own):.2f}x",
            *((f"{figures.draft_acceptance_rate:.1%}", f"{figures.mean_acceptance_length:.2f}") if name != "plain" else ()),
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
