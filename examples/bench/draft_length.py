"""The draft lengths that we choose beside constant ones, on SmolLM2, with drafts of known acceptance.

python examples/bench/draft_length.py [--acceptance 0.3,0.8,0.95] [--batch 1,8] [--tokens 48,128] [--temperature 0.8] [--eager]

A draft knows the text, guesses each token right with the chance asked for, and takes the time of a head: a product with the
vocabulary for each token. First the time of rounds is measured, by rows and draft length, all in turn. Then calls choose their
lengths by the clock, after NUM_FIRST that do not count. Both they and constant lengths are charged the measured times of their
rounds, so that a busy moment decides nothing. Prints a Markdown table: the time of the best constant length over ours, means
over calls in which other tokens are right, and the geometric mean. Sampled calls are reproducible: there is a text to know.
"""

import argparse
import itertools
import math
import random
import statistics
import time

import numpy as np
import torch
from transformers.generation import BaseStreamer

import hf_speculative as hs
from hf_speculative.command.prompts import QUESTIONS

ROWS, LENGTHS, NUM_TIMED = (1, 2, 4, 8), (0, 1, 2, 3, 4, 6, 8, 12, 16), 8
#: calls in which costs and acceptance rates of a pair are learned
NUM_FIRST = 4


class Known(hs.Drafter):
    """Guesses each token of known texts right with the chance `acceptance`, and notes rows and draft length of each round."""

    one_hot_proposals = True
    num_forwards = 0

    def __init__(self, target, texts: list[list[int]], acceptance: float):
        self.head, self.texts, self.acceptance = target.get_output_embeddings(), texts, acceptance
        self.toss(0)

    def toss(self, seed: int) -> None:
        coins = random.Random(seed)
        self.is_right = [[coins.random() < self.acceptance for _ in text] for text in self.texts]

    def begin(self, batch, sampler):
        self.width, self.rounds, self.clock = batch.prompt_width, [], []

    def propose(self, batch, num_tokens, schedule, sampler):
        found = []
        for row, length, num in zip(batch.rows, batch.host_lengths, num_tokens, strict=True):
            places = slice(length - self.width, length - self.width + num)
            pairs = zip(self.texts[row][places], self.is_right[row][places], strict=True)
            found.append([token if is_right else token ^ 1 for token, is_right in pairs])
        for _ in range(width := max(map(len, found))):
            self.head(torch.ones(len(found), 1, self.head.in_features))
            self.num_forwards += 1
        tokens = torch.tensor([guess + [0] * (width - len(guess)) for guess in found])
        return hs.Draft(tokens, None, torch.tensor([len(guess) for guess in found]))

    def observe(self, batch, draft, logits):
        self.rounds.append((len(batch.rows), draft.width))
        self.clock.append(time.perf_counter())

    def rounds_of(self, length: int) -> list[tuple[int, int]]:
        """Rows and draft length of each round of a call with a constant length."""
        places, rounds = [1] * len(self.texts), [(len(self.texts), 0)]  # the prompts' round drafts nothing
        while left := [row for row, place in enumerate(places) if place < len(self.texts[row])]:
            num = min(length, max(len(self.texts[row]) - places[row] - 1 for row in left))
            rounds.append((len(left), num))
            for row in left:
                drafted = self.is_right[row][places[row] : -1][:num]
                places[row] += 1 + len(list(itertools.takewhile(bool, drafted)))
        return rounds


class Clock(BaseStreamer):
    """Notes when each step ends."""

    def __init__(self):
        self.steps: list[float] = []

    def put(self, value):
        self.steps.append(time.perf_counter())

    def end(self):
        """Nothing is left over."""


class Times:
    """Seconds of a round by rows and draft length, between measured ones interpolated."""

    def __init__(self, seconds: dict[tuple[int, int], float]):
        self.seconds = seconds

    def __call__(self, rounds: list[tuple[int, int]]) -> float:
        """Of all rounds but the first, which reads the prompts."""
        return sum(self.of(*one) for one in rounds[1:])

    def of(self, rows: int, length: int) -> float:
        columns = [float(np.interp(length, LENGTHS, [self.seconds[size, n] for n in LENGTHS])) for size in ROWS]
        return float(np.interp(rows, ROWS, columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acceptance", default="0.3,0.8,0.95")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--tokens", default="48,128")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampled calls with top_p 0.95; 0 is greedy")
    parser.add_argument("--eager", action="store_true", help="the model's own passes instead of compiled ones")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    sizes, numbers = ([int(one) for one in names.split(",")] for names in (given.batch, given.tokens))
    sampling = {"do_sample": False}
    if given.temperature:
        sampling = {
            "do_sample": True,
            "temperature": given.temperature,
            "top_p": 0.95,
            "top_k": 0,
            "reproducible": True,
        }
    target, _, tokenizer = hs.example_pair()
    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    hs.attach(target, optimize=not given.eager)

    def decode(size: int, num_tokens: int, **kwargs) -> list[list[int]]:
        torch.manual_seed(0)
        inputs = tokenizer(prompts[:size], return_tensors="pt", padding=True, add_special_tokens=False)
        call = {**inputs, **sampling, "max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        ids = target.generate(**call, pad_token_id=tokenizer.eos_token_id, **kwargs)
        return ids[:, inputs.input_ids.shape[1] :].tolist()

    longest = NUM_TIMED * (max(LENGTHS) + 1) + 2
    of_size = {size: Known(target, decode(size, longest, draft_model=None), 1.0) for size in ROWS}

    def seconds_of_rounds(size: int, length: int) -> list[float]:
        if not length:
            clock = Clock()
            decode(size, NUM_TIMED + 2, draft_model=None, streamer=clock)
            return [end - start for start, end in itertools.pairwise(clock.steps[2:])]  # after prompts and first tokens
        known = of_size[size]
        decode(size, NUM_TIMED * (length + 1) + 2, draft_model=known, num_draft_tokens=length)
        ends = zip(known.rounds[1:], itertools.pairwise(known.clock), strict=True)
        return [end - start for kind, (start, end) in ends if kind == (size, length)]

    kinds = list(itertools.product(ROWS, LENGTHS))
    measured: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    for repeat in range(6):
        for kind in random.Random(repeat).sample(kinds, len(kinds)):
            took = seconds_of_rounds(*kind)
            measured[kind] += took if repeat else []  # the first one warms up
    times = Times({kind: statistics.median(own) for kind, own in measured.items()})
    print("Milliseconds of a round, by rows and draft length:\n\n| rows | " + " | ".join(map(str, LENGTHS)) + " |")
    print("|---" * (len(LENGTHS) + 1) + "|")
    for size in ROWS:
        print(f"| {size} | " + " | ".join(f"{1e3 * times.of(size, n):.0f}" for n in LENGTHS) + " |")
    print(
        "\n| acceptance | batch | new tokens | best constant | over no draft | ours over the best |\n|---|---|---|---|---|---|",
        flush=True,
    )
    found: list[float] = []
    for size, num_tokens in itertools.product(sizes, numbers):
        texts = decode(size, num_tokens, draft_model=None)
        for acceptance in map(float, given.acceptance.split(",")):
            draft, ours = Known(target, texts, acceptance), 0.0
            constant = dict.fromkeys(LENGTHS, 0.0)
            for repeat in range(NUM_FIRST + given.repeats):
                draft.toss(repeat)
                decode(size, num_tokens, draft_model=draft)
                if repeat >= NUM_FIRST:
                    ours += times(draft.rounds)
                    constant = {n: seconds + times(draft.rounds_of(n)) for n, seconds in constant.items()}
            best = min(LENGTHS, key=constant.__getitem__)
            found.append(constant[best] / ours)
            gain = f"{constant[0] / constant[best]:.2f}x"
            print(f"| {acceptance} | {size} | {num_tokens} | {best} | {gain} | {found[-1]:.2f} |", flush=True)
    mean = math.exp(statistics.fmean(map(math.log, found)))
    print(f"\nGeometric mean {mean:.3f}, lowest {min(found):.2f}, of {len(found)} cells.")


if __name__ == "__main__":
    main()
