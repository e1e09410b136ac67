"""The table of docs/trees.md, how many draft tokens each rule keeps, exactly: `python -m tests.support.kept_of_trees`.

Target and draft are random tables of the text so far. The mean of a draft is the sum over its nodes of the chance to be kept,
which depends on the way to a node and the siblings before that; so all tokens of these are enumerated, for each node in turn.
"""

from __future__ import annotations

import itertools

import torch

from hf_speculative import Draft
from hf_speculative.verification import BlockVerification, SampledVerification, TokenVerification

from .branching import Branching

VOCAB, DEPTH, SEEDS = 6, 3, range(2)
#: spread of the target's logits, and of what the draft's differ by
PAIRS = {"flat target, close draft": (1.0, 0.5), "sharp target, close draft": (3.0, 1.0), "sharp, far": (3.0, 3.0)}


def with_replacement(q, elders):
    return q


def without_replacement(q, elders):
    rest = q.scatter(1, elders, 0)
    return rest / rest.sum(1, keepdim=True)


def drawn_then_likeliest(q, elders):
    likeliest = torch.zeros_like(q).scatter(1, q.argmax(1, keepdim=True), 1)
    return likeliest if elders.shape[1] else without_replacement(q, q.argmax(1, keepdim=True))


def likeliest_first(q, elders):
    return torch.zeros_like(q).scatter(1, q.topk(elders.shape[1] + 1).indices[:, -1:], 1)


#: siblings, how many, and how they are judged
ROWS = [
    ("chain: the likeliest", likeliest_first, 1, (SampledVerification,)),
    ("chain: drawn", with_replacement, 1, (TokenVerification, BlockVerification)),
    ("two likeliest", likeliest_first, 2, (SampledVerification,)),
    ("two drawn independently", with_replacement, 2, (TokenVerification, BlockVerification)),
    ("two drawn without replacement", without_replacement, 2, (TokenVerification, BlockVerification)),
    ("one drawn, then the likeliest", drawn_then_likeliest, 2, (TokenVerification, BlockVerification)),
]
NAMES = {SampledVerification: "sampled", TokenVerification: "token", BlockVerification: "block"}


def tables(seed: int, spread: float, difference: float):
    """p and q, each as a list: `(vocab ** depth, vocab)` after every text of each depth."""
    generator = torch.Generator().manual_seed(seed)
    p, q = [], []
    for depth in range(DEPTH + 1):
        logits, noise = torch.randn(2, VOCAB**depth, VOCAB, generator=generator, dtype=torch.float64)
        p.append((spread * logits).softmax(1))
        q.append((spread * logits + difference * noise).softmax(1))
    return p, q


def num_kept(rule, p, q, siblings, width: int) -> float:
    ways = (way for depth in range(1, DEPTH + 1) for way in itertools.product(range(width), repeat=depth))
    return sum(chance_of(way, rule, p, q, siblings) for way in ways)


def chance_of(way: tuple[int, ...], rule, p, q, siblings) -> float:
    """That the node is kept to which the siblings of these ranks lead."""
    parents, tokens, probs = [], torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, VOCAB, dtype=torch.float64)
    texts, depths, chances = torch.zeros(1, 1, dtype=torch.long), [0], torch.ones(1, dtype=torch.float64)
    for depth, rank in enumerate(way):
        parent = len(parents) - 1
        for _ in range(rank + 1):
            elders = tokens[:, parent + 1 :]
            drawn_from = siblings(q[depth][texts[:, parent + 1]], elders)
            row, token = drawn_from.nonzero(as_tuple=True)
            following = texts[row, parent + 1] * VOCAB + token
            tokens, texts = torch.cat([tokens[row], token[:, None]], 1), torch.cat([texts[row], following[:, None]], 1)
            probs = torch.cat([probs[row], drawn_from[row, None]], 1)
            chances = chances[row] * drawn_from[row, token]
            parents.append(parent)
            depths.append(depth + 1)
    target_probs = torch.stack([p[depth][text] for depth, text in zip(depths, texts.T, strict=True)], 1)
    num_tokens = torch.full((len(tokens),), len(parents))
    draft = Draft(tokens, probs, num_tokens, torch.tensor(parents).expand(len(tokens), -1))
    return (chances @ rule()(draft, target_probs, Branching([])).acceptance_prob[:, -1]).item()


def table() -> str:
    pairs = {name: [tables(seed, *spreads) for seed in SEEDS] for name, spreads in PAIRS.items()}
    lines = [f"| siblings | rule | {' | '.join(PAIRS)} |", "|---|---|" + "---|" * len(PAIRS)]
    for name, siblings, width, rules in ROWS:
        for rule in rules:
            means = [sum(num_kept(rule, *pair, siblings, width) for pair in own) / len(own) for own in pairs.values()]
            lines.append(f"| {name} | {NAMES[rule]} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
