"""How many texts a draft changes in half precision, and what passes of one shape cost.

python examples/bench/bitwise.py PROMPTS.jsonl [--model smollm2] [--num-prompts 48] [--batch-size 8] [--optimize]

The file has a prompt a line, as a JSON object with the field "prompt", such as HumanEval's.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from tqdm import tqdm

import hf_speculative as hs

BITWISE = {"reproducible": "bitwise"}


def texts_of(model, prompts, tokenizer, batch_size, settings, name):
    """The new tokens of each prompt, and seconds in all."""
    texts, began = [], time.perf_counter()
    batches = [prompts[i : i + batch_size] for i in range(0, len(prompts), batch_size)]
    for batch in tqdm(batches, name, leave=False):
        inputs = tokenizer(batch, return_tensors="pt", padding=True)
        torch.manual_seed(0)
        plain = settings.get("plain")
        generate = model.generate if plain else lambda **call: hs.generate(model, **call)
        call = {key: value for key, value in settings.items() if key != "plain"}
        ids = generate(**inputs, max_new_tokens=128, pad_token_id=tokenizer.pad_token_id, **call)
        ids = ids[:, inputs["input_ids"].shape[1] :]
        texts += [list(itertools.takewhile(lambda i: i not in (0, tokenizer.eos_token_id), row)) for row in ids.tolist()]
    return texts, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="embedded", choices=["embedded", "smollm2"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=8, help="the second batch size, beside 1")
    parser.add_argument("--optimize", action="store_true", help="compiled passes and our kernel for ours")
    options = parser.parse_args()
    target, draft, tokenizer = hs.embedded_pair() if options.model == "embedded" else hs.example_pair("smollm2")
    dtype = getattr(torch, options.dtype)
    target, tokenizer.padding_side = target.to(dtype), "left"
    tokenizer.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ours = {"draft_model": draft.to(dtype) if isinstance(draft, torch.nn.Module) else "auto"}
    assisted = {"assistant_model": ours["draft_model"]} if options.model == "embedded" else {"prompt_lookup_num_tokens": 5}
    lines = [json.loads(line)["prompt"] for line in options.prompts.read_text().splitlines()]
    prompts = [tokenizer.decode(tokenizer(line)["input_ids"][-100:]) for line in lines[: options.num_prompts]]
    if options.optimize:
        hs.attach(target, **ours, optimize=True)
    print(f"{len(prompts)} prompts, 128 tokens, {options.dtype}, {options.model}, threads {torch.get_num_threads()}")
    print("| | batch | texts that differ from plain | from bitwise plain | seconds over plain |\n|---|---|---|---|---|")
    for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0}):
        of_one = {}
        for size in (1, options.batch_size):
            none = {"plain": not options.optimize, "draft_model": None} if options.optimize else {"plain": True}
            reproducible = {"reproducible": True} if sampling["do_sample"] else {}
            ways = {
                "plain": none,
                "transformers, assisted": {"plain": True} | assisted,
                "draft": ours | reproducible,
                "bitwise, no draft": BITWISE | {"draft_model": None},
                "bitwise, draft": BITWISE | ours,
                "bitwise, 3 draft tokens": BITWISE | ours | {"num_draft_tokens": 3},
            }
            if size > 1 or options.optimize:
                ways.pop("transformers, assisted")
            for name, way in ways.items():  # passes are compiled, and kernels are found
                texts_of(target, prompts[:size], tokenizer, size, way | sampling, name)
            found = {name: texts_of(target, prompts, tokenizer, size, way | sampling, name) for name, way in ways.items()}
            of_one = of_one or found["plain"][0]
            for name, (texts, seconds) in found.items():
                of_plain = of_one if name == "plain" else found["plain"][0]
                counts = [
                    sum(a != b for a, b in zip(texts, other, strict=True))
                    for other in (of_plain, found["bitwise, no draft"][0])
                ]
                kind = "sampled" if sampling["do_sample"] else "greedy"
                print(
                    f"| {kind}: {name} | {size} | {counts[0]} | {counts[1]} | {seconds / found['plain'][1]:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
