"""Merge guesses into the tree of a drafter that scores a level at a time."""

from collections.abc import Sequence
from math import exp, inf

import torch

from ..interfaces import Schedule
from ..types import Batch, Draft, Nodes, uploaded
from .levels import Levels
from .nodes import draft_of, united

#: the prior ratio of kept to expected guesses that the drafter does not share, its weight in guesses, and decay a round
FIRST_TRUST, TRUST_WEIGHT, MEMORY = 0.5, 4.0, 0.97


class MergedTree:
    """A tree of a drafter's candidates and of guesses, the likeliest first.

    Guesses that the drafter does not share are accepted less often than others of their kind. So their probabilities are
    scaled by the ratio of accepted to expected ones so far. The tree is deterministic, and any rule judges it as such.
    """

    def __init__(self):
        self.promised, self.kept = TRUST_WEIGHT, FIRST_TRUST * TRUST_WEIGHT
        self.is_fed: list[list[bool]] = []
        self.chances: list[list[float]] = []

    def draft(
        self, batch: Batch, candidates: Levels, guesses: Sequence[Nodes], num_tokens: list[int], schedule: Schedule
    ) -> tuple[Draft, torch.Tensor]:
        """The tree, and which of the expanded candidates each node is, their number if none: `(batch, n)`."""
        # Read by the host, beside the one read of each round: which candidates there are.
        read = torch.stack([values.double() for values in candidates.best(max(num_tokens))], 1).tolist()
        not_fed, trust = candidates.expanded.shape[1], min(1.0, self.kept / self.promised)
        trees, origins = zip(
            *(united(_nodes_of(*own[:3]), guessed, trust) for own, guessed in zip(read, guesses, strict=True)),
            strict=True,
        )
        limits = [min(n, len(tree.tokens)) for n, tree in zip(num_tokens, trees, strict=True)]
        counts = schedule.num_nodes(batch, [tree.chances[:n] for tree, n in zip(trees, limits, strict=True)])
        fed_as, self.is_fed, self.chances = [], [], []
        for (*_, places), tree, came_from, n in zip(read, trees, origins, counts, strict=True):
            row = [not_fed if node is None else int(places[node]) for node in came_from[:n]]
            fed_as.append(row + [not_fed] * (max(counts) - n))
            self.is_fed.append([place < not_fed for place in row])
            self.chances.append([0.0 if node is not None else tree.chances[i] for i, node in enumerate(came_from[:n])])
        draft = draft_of(batch, trees, counts) if any(counts) else Draft.empty(batch)
        return draft, uploaded(fed_as, batch.tokens.device, torch.long)

    def judge(self, paths: list[list[int]]) -> None:
        """Which of the guesses were on the `paths` that the last round kept."""
        kept = (row[node] > 0 for row, path in zip(self.chances, paths, strict=True) for node in path)
        self.kept = MEMORY * self.kept + sum(kept)
        self.promised = MEMORY * self.promised + sum(map(sum, self.chances))


def _nodes_of(tokens: list[float], parents: list[float], confidences: list[float]) -> Nodes:
    """A row's candidates, without those that are impossible by the processors, which come last."""
    nodes = Nodes()
    for token, parent, confidence in zip(tokens, parents, confidences, strict=True):
        if confidence > -inf:
            nodes.add(int(token), int(parent), exp(confidence))
    return nodes
