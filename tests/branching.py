"""Exact laws: run a rule with every outcome of every random decision, and add up the probabilities.

A `Branching` sampler answers `bernoulli` and `categorical` from a script and keeps the probability of what it answered; one
batch row stands for one draft of one prefix, so that a round of all drafts is a handful of tensor calls.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import torch

from hf_speculative import Draft


class Branching:
    one_hot_proposals = False

    def __init__(self, script: list[int]):
        self.script, self.arities, self.weight = script, [], 1.0

    def bernoulli(self, probability):
        outcomes = torch.tensor([self._choose(2) for _ in range(probability.shape[1])]).bool().expand_as(probability)
        self.weight = self.weight * torch.where(outcomes, probability, 1 - probability).prod(1)
        return outcomes

    def categorical(self, probs, ahead=0):
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


class Laws:
    """Context-dependent next-token laws over `vocab` tokens: a random table of prefixes, float64."""

    def __init__(self, seed: int, vocab: int = 3, zeros: bool = False, like: Laws | None = None, iid=None):
        self.seed, self.vocab, self.zeros, self.like, self.iid = seed, vocab, zeros, like, iid
        self.table: dict[tuple, torch.Tensor] = {}

    def __call__(self, prefix: tuple) -> torch.Tensor:
        if self.iid is not None:
            return torch.tensor(self.iid, dtype=torch.float64)
        if prefix not in self.table:
            generator = torch.Generator().manual_seed(hash((self.seed, prefix)) % 2**31)
            law = torch.rand(self.vocab, generator=generator, dtype=torch.float64)
            if self.zeros and torch.rand(1, generator=generator) < 0.5:
                law[int(torch.randint(self.vocab, (1,), generator=generator))] = 0
            if self.like is not None:  # a draft that partly agrees
                law = law / law.sum() + self.like(prefix)
            self.table[prefix] = law / law.sum()
        return self.table[prefix]


def one_hot(laws: Laws):
    """The deterministic version of a draft: always its most likely token."""

    def argmax(prefix: tuple) -> torch.Tensor:
        law = laws(prefix)
        return torch.zeros_like(law).index_fill(0, law.argmax(), 1.0)

    return argmax


def round_law(rule, p, q, prefixes, gamma, num_tokens=None, judged_by=None, deterministic=False):
    """The law of one round's emitted tokens, for each prefix: `{prefix: {emitted: probability}}`.

    Args:
        p, q: laws of target and draft.
        num_tokens: `(prefix, draft tokens) -> how many of them are proposed`, by default all `gamma`.
        judged_by: the law handed to the rule in place of the `q` that was drawn from: a bug on purpose.
        deterministic: hand over `probs=None`; `q` must be one-hot.
    """
    judged_by = judged_by or q
    cases = []
    for prefix in prefixes:
        for tokens in itertools.product(range(len(p(()))), repeat=gamma):
            n = gamma if num_tokens is None else num_tokens(prefix, tokens)
            if any(tokens[n:]):
                continue  # beyond the proposal stands filler: count it once
            weight = 1.0
            for i in range(n):
                weight *= q(prefix + tokens[:i])[tokens[i]].item()
            if weight > 0:
                cases.append((prefix, tokens, n, weight))
    tokens = torch.tensor([case[1] for case in cases]).view(len(cases), gamma)
    target_probs = torch.stack([torch.stack([p(c[0] + c[1][:i]) for i in range(gamma + 1)]) for c in cases])
    probs = None
    if not deterministic:
        laws = [[judged_by(c[0] + c[1][:i]) for i in range(gamma)] for c in cases]
        probs = torch.stack([torch.stack(row) for row in laws]) if gamma else target_probs[:, :0]
    draft = Draft(tokens, probs, torch.tensor([case[2] for case in cases]))
    emitted = {prefix: defaultdict(float) for prefix in prefixes}
    for verdict, weights in branches(lambda sampler: rule(draft, target_probs, sampler)):
        for (prefix, x, _, case_weight), tau, y, weight in zip(
            cases, verdict.num_accepted.tolist(), verdict.next_token.tolist(), weights.tolist(), strict=True
        ):
            if weight > 0:
                emitted[prefix][(*x[:tau], y)] += case_weight * weight
    return emitted


def sequence_law(rule, p, q, gamma, length, **options):
    """The law of the first `length` tokens over as many rounds as they take."""
    mass = {(): 1.0}
    final = defaultdict(float)
    while mass:
        laws = round_law(rule, p, q, list(mass), gamma, **options)
        following = defaultdict(float)
        for prefix, emitted in laws.items():
            for tokens, probability in emitted.items():
                sequence = prefix + tokens
                goes_to = final if len(sequence) >= length else following
                goes_to[sequence[:length]] += mass[prefix] * probability
        mass = following
    return final


def plain_law(p, length):
    """What plain decoding gives."""
    vocab = len(p(()))
    law = {}
    for sequence in itertools.product(range(vocab), repeat=length):
        probability = 1.0
        for i, token in enumerate(sequence):
            probability *= p(sequence[:i])[token].item()
        law[sequence] = probability
    return law


def distance(found, expected) -> float:
    """Total variation."""
    return sum(abs(found.get(s, 0.0) - expected.get(s, 0.0)) for s in found.keys() | expected.keys()) / 2
