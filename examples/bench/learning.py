"""A draft that learns in use beside the same one that does not, for a target that has moved away from both.

python examples/bench/learning.py [--suite gsm8k=FILE] [--minutes 20] [--share 0.05] [--batch-size 8] [--temperature 0.7]

The embedded target learns the questions of a suite for 60 steps, as a policy in training moves; its head was trained before.
Both models then continue beginnings of these questions in turn, one in five times the static draft. Prints, for every 90
seconds, tokens a second with learning included, over those of the static draft, and tokens a target pass.
"""

import argparse
import copy
import itertools
import statistics
import time
from pathlib import Path

import torch

import hf_speculative as hs
from hf_speculative.measuring.suites import questions

HEAD = Path(hs.__file__).parent / "embedded" / "head"
STEPS, BLOCK = 60, 90.0


def move(target, tokenizer, texts: list[str]) -> None:
    """Train the target on the texts."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(target.parameters(), lr=5e-4)
    following = itertools.cycle(texts)
    tokenizer.padding_side = "right"
    for _ in range(STEPS):
        some = [next(following) for _ in range(8)]
        batch = tokenizer(some, return_tensors="pt", padding=True, truncation=True, max_length=128)
        target(**batch, labels=batch.input_ids.masked_fill(batch.attention_mask == 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="gsm8k", help="NAME or NAME=FILE, as in `bench`")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--share", type=float, default=0.05, help="of the time for learning")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.7)
    given = parser.parse_args()
    static, _, tokenizer = hs.embedded_pair()
    texts = [row["turns"][0] for row in questions(given.suite)][:200]
    move(static, tokenizer, texts)
    tokenizer.padding_side = "left"
    learning, learner = copy.deepcopy(static), hs.Learner(share=given.share)
    hs.attach(static, str(HEAD))
    hs.attach(learning, str(HEAD), learn=learner)

    def call(model, index: int) -> tuple[int, float, float]:
        some = [texts[(index + row) % len(texts)][:400] for row in range(given.batch_size)]
        inputs = tokenizer(some, return_tensors="pt", padding=True)
        torch.manual_seed(index)
        started = time.perf_counter()
        with hs.record() as counts:
            model.generate(
                **inputs,
                max_new_tokens=128,
                do_sample=True,
                temperature=given.temperature,
                num_draft_tokens=4,
                pad_token_id=tokenizer.pad_token_id,
            )
        return counts.num_new_tokens, time.perf_counter() - started, counts.mean_acceptance_length

    begun = told = time.monotonic()
    found: dict[str, list] = {"static": [], "learning": []}
    for number in itertools.count():
        if number % 5 == 0:
            found["static"].append(call(static, number // 5 * given.batch_size))
        found["learning"].append(call(learning, number * given.batch_size))
        now = time.monotonic()
        if now - told < BLOCK:
            continue
        speed = {way: sum(one[0] for one in calls) / sum(one[1] for one in calls) for way, calls in found.items()}
        kept = {way: statistics.mean(one[2] for one in calls) for way, calls in found.items()}
        print(
            f"{(now - begun) / 60:5.1f} min: {speed['learning'] / speed['static']:.2f}x, kept {kept['static']:.2f} and "
            f"{kept['learning']:.2f}; {learner.num_steps} steps, {learner.num_taken_over} taken over",
            flush=True,
        )
        found, told = {"static": [], "learning": []}, now
        if now - begun > 60 * given.minutes:
            return


if __name__ == "__main__":
    main()
