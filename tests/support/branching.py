"""Exact distributions: run a rule with every outcome of every random decision, and add up the probabilities.

A `Branching` sampler answers `bernoulli` and `categorical` from a script and keeps the probability of what it answered; one
batch row stands for one draft of one prefix, so that a round of all drafts is a handful of tensor calls.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import torch

from hf_speculative import Draft
from hf_speculative.verification import BlockVerification, TokenVerification
from tests.support.trees import path_to

#: total variation below which two enumerated distributions are one, and above which they are not
EXACT, WRONG = 1e-12, 1e-3
BY_DISTRIBUTION = (TokenVerification, BlockVerification)


class Branching:
    one_hot_proposals = False

    def __init__(self, script: list[int]):
        self.script, self.arities, self.weight = script, [], 1.0

    def bernoulli(self, probability):
        outcomes = torch.tensor([self._choose(2) for _ in range(probability.shape[1])]).bool().expand_as(probability)
        self.weight = self.weight * torch.where(outcomes, probability, 1 - probability).prod(1)
        return outcomes

    def categorical(self, probs, ahead=0, tree=None):
        probs = probs / probs.sum(-1, keepdim=True)
        tokens = torch.tensor([self._choose(probs.shape[2]) for _ in range(probs.shape[1])]).expand(probs.shape[:2])
        self.weight = self.weight * probs.gather(2, tokens[..., None])[..., 0].prod(1)
        return tokens

    def _choose(self, arity: int) -> int:
        if len(self.arities) == len(self.script):
            self.script.append(0)
        self.arities.append(arity)
        return self.script[len(self.arities) - 1]


def branches(call):
    """Every `(result, weight)` of `call(sampler)`: depth first, like an odometer."""
    script: list[int] = []
    while True:
        sampler = Branching(script)
        yield call(sampler), sampler.weight
        while script and script[-1] == sampler.arities[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


class Table:
    """Context-dependent next-token distributions over `vocab` tokens: a random table of prefixes, float64."""

    def __init__(self, seed: int, vocab: int = 3, zeros: bool = False, like: Table | None = None, iid=None):
        self.seed, self.vocab, self.zeros, self.like, self.iid = seed, vocab, zeros, like, iid
        self.table: dict[tuple, torch.Tensor] = {}

    def __call__(self, prefix: tuple) -> torch.Tensor:
        if self.iid is not None:
            return torch.tensor(self.iid, dtype=torch.float64)
        if prefix not in self.table:
            generator = torch.Generator().manual_seed(hash((self.seed, prefix)) % 2**31)
            probs = torch.rand(self.vocab, generator=generator, dtype=torch.float64)
            if self.zeros and torch.rand(1, generator=generator) < 0.5:
                probs[int(torch.randint(self.vocab, (1,), generator=generator))] = 0
            if self.like is not None:  # a draft that partly agrees
                probs = probs / probs.sum() + self.like(prefix)
            self.table[prefix] = probs / probs.sum()
        return self.table[prefix]


def one_hot(table: Table):
    """The deterministic version of a draft: always its most likely token."""

    def argmax(prefix: tuple) -> torch.Tensor:
        probs = table(prefix)
        return torch.zeros_like(probs).index_fill(0, probs.argmax(), 1.0)

    return argmax


def with_replacement(q):
    """Siblings drawn independently of each other."""
    return lambda prefix, *elders: q(prefix)


def without_replacement(q):
    """Siblings drawn one after the other; where nothing is left, there are none."""

    def among_the_rest(prefix: tuple, *elders: int) -> torch.Tensor:
        probs = q(prefix).clone()
        probs[list(elders)] = 0
        return probs / probs.sum().clamp(min=1e-300)

    return among_the_rest


def drawn_then_fixed(q, num_siblings: int = 2):
    """One sibling drawn from outside the likeliest tokens, then these."""

    def drawn_or_fixed(prefix: tuple, *elders: int) -> torch.Tensor:
        probs = q(prefix)
        fixed = probs.argsort(descending=True)[: num_siblings - 1]
        if elders:
            return torch.zeros_like(probs).index_fill(0, fixed[len(elders) - 1], 1.0)
        drawn = probs.index_fill(0, fixed, 0.0)
        return drawn / drawn.sum().clamp(min=1e-300)

    return drawn_or_fixed


def all_drafts(p, q, prefixes, gamma, num_tokens=None, judged_by=None, deterministic=False, parents=None):
    """All drafts after each prefix: `[(prefix, tokens, number proposed, probability)]`, and as one batch what a rule sees.

    Args:
        p, q: distributions of target and draft; `q` of a tree is told the siblings before a node, too.
        num_tokens: `(prefix, draft tokens) -> how many of them are proposed`, by default all `gamma`.
        judged_by: the distribution handed to the rule in place of the `q` that was drawn from: a bug on purpose.
        deterministic: hand over `probs=None`; `q` must be one-hot.
        parents: of a tree's `gamma` nodes; by default a chain.
    """
    judged_by = judged_by or q
    above = list(range(-1, gamma - 1)) if parents is None else parents
    cases = []
    for prefix in prefixes:
        for tokens in itertools.product(range(len(p(()))), repeat=gamma):
            n = gamma if num_tokens is None else num_tokens(prefix, tokens)
            if any(tokens[n:]):
                continue  # beyond the proposal stands filler: count it once
            weight = math.prod(draw_or_none(q(*drawn_after(above, prefix, tokens, i)), tokens[i]) for i in range(n))
            if weight > 0:
                cases.append((prefix, tokens, n, weight))
    tokens = torch.tensor([case[1] for case in cases]).view(len(cases), gamma)
    target_probs = torch.stack([torch.stack([p(text_at(above, *c[:2], i)) for i in range(-1, gamma)]) for c in cases])
    probs = None
    if not deterministic:
        distributions = [[judged_by(*drawn_after(above, *c[:2], i)) for i in range(gamma)] for c in cases]
        probs = torch.stack([torch.stack(row) for row in distributions]) if gamma else target_probs[:, :0]
    tree = None if parents is None else torch.tensor([parents] * len(cases))
    return cases, Draft(tokens, probs, torch.tensor([case[2] for case in cases]), tree), target_probs


def one_round(rule, p, q, prefixes, gamma, **options):
    """The distribution of one round's emitted tokens, for each prefix: `{prefix: {emitted: probability}}`."""
    cases, draft, target_probs = all_drafts(p, q, prefixes, gamma, **options)
    emitted = {prefix: defaultdict(float) for prefix in prefixes}
    for verdict, weights in branches(lambda sampler: rule(draft, target_probs, sampler)):
        path = torch.arange(gamma).expand(len(cases), gamma) if verdict.path is None else verdict.path
        decided = (verdict.num_accepted, path, verdict.next_token, weights)
        for (prefix, x, _, drawn), tau, kept, y, weight in zip(cases, *(d.tolist() for d in decided), strict=True):
            if weight > 0:
                emitted[prefix][(*(x[i] for i in kept[:tau]), y)] += drawn * weight
    return emitted


def text_at(parents: list[int], prefix: tuple, tokens: tuple, node: int) -> tuple:
    """The prefix and what leads to a node of a tree; node -1 is the prefix."""
    return (*prefix, *(tokens[i] for i in path_to(parents, node)))


def drawn_after(parents: list[int], prefix: tuple, tokens: tuple, node: int) -> tuple:
    """The text before a node, then the siblings before it."""
    elders = [tokens[i] for i in range(node) if parents[i] == parents[node]]
    return text_at(parents, prefix, tokens, parents[node]), *elders


def draw_or_none(probs: torch.Tensor, token: int) -> float:
    """The chance of a token; what has nothing to draw from holds filler."""
    return probs[token].item() if probs.any() else float(token == 0)


def sequences(rule, p, q, gamma, length, **options):
    """The distribution of the first `length` tokens over as many rounds as they take."""
    mass = {(): 1.0}
    final = defaultdict(float)
    while mass:
        distributions = one_round(rule, p, q, list(mass), gamma, **options)
        following = defaultdict(float)
        for prefix, emitted in distributions.items():
            for tokens, probability in emitted.items():
                sequence = prefix + tokens
                goes_to = final if len(sequence) >= length else following
                goes_to[sequence[:length]] += mass[prefix] * probability
        mass = following
    return final


def plain_sequences(p, length):
    """What plain decoding gives."""
    texts = itertools.product(range(len(p(()))), repeat=length)
    return {text: math.prod(p(text[:i])[token].item() for i, token in enumerate(text)) for text in texts}


def distance(found, expected) -> float:
    """Total variation."""
    return sum(abs(found.get(s, 0.0) - expected.get(s, 0.0)) for s in found.keys() | expected.keys()) / 2


def pair(seed: int, zeros: bool = False) -> tuple[Table, Table]:
    """A target and a draft."""
    p = Table(seed, zeros=zeros)
    return p, Table(seed + 1000, zeros=zeros, like=p if seed % 2 else None)


def extreme_pairs() -> list[tuple[Table, Table]]:
    """A target and a draft that are one, that are sure, that share no token."""
    (p, q), hot, cold = pair(3), Table(0, iid=[0.0, 1.0, 0.0]), Table(0, iid=[0.5, 0.0, 0.5])
    return [(p, p), (hot, q), (p, hot), (hot, cold), (cold, hot), (hot, hot)]


def bias(rule, p, q, gamma, length, **options):
    """Of the first `length` tokens."""
    return distance(sequences(rule(), p, q, gamma, length, **options), plain_sequences(p, length))
