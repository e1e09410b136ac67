"""Drafts without a draft model: trees of what several proposers expect, the likeliest nodes first."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import torch
from torch import Tensor

from ..forwarding import to_each
from ..interfaces import Drafter, Sampler, Schedule
from ..types import Batch, Draft, Nodes, read_later
from .dynamic_tree import draft_of
from .proposers import ForcedTokens, Kind, Proposer

#: weights, in guesses, of the prior of a kind, and of the rate of all rows as the prior of a row
PRIOR_WEIGHT, ROW_WEIGHT = 4.0, 8.0
#: the number of guesses of a kind beyond which old ones fade
MEMORY = 64.0


class Chances:
    """Shares of right guesses by kind, for all rows and for each.

    Args:
        prior: the share of a kind of which nothing was seen.
        of_all: what is known already, and goes on to be learned: right guesses and guesses of each kind.
    """

    def __init__(self, prior: Callable[[Any], float], of_all: dict[Hashable, list[float]]):
        self.prior, self.of_all = prior, of_all
        self.of_row: dict[int, dict[Hashable, list[float]]] = defaultdict(dict)

    def forget_all_but(self, rows: Iterable[int]) -> None:
        """These rows alone go on: a server's call has no end."""
        for row in self.of_row.keys() - {*rows}:
            del self.of_row[row]

    def of(self, row: int, kind: Hashable) -> float:
        """The chance that a guess of this kind is right in this row of the call."""
        if kind not in self.of_all:
            self.of_all[kind] = [PRIOR_WEIGHT * self.prior(kind), PRIOR_WEIGHT]
        right, num = self.of_all[kind]
        own_right, own_num = self.of_row[row].get(kind, (0.0, 0.0))
        return (own_right + ROW_WEIGHT * right / num) / (own_num + ROW_WEIGHT)

    def add(self, row: int, kind: Hashable, is_right: bool) -> None:
        for counts in (self.of_all[kind], self.of_row[row].setdefault(kind, [0.0, 0.0])):
            counts[0] += is_right
            counts[1] += 1
            if counts[1] > MEMORY:
                counts[0] /= 2
                counts[1] /= 2


@dataclass
class Growth(Nodes):
    """A tree that grew over one row's text.

    Attributes:
        guesses: what was guessed after the text (at -1) and after the nodes, proposed or not: each token's kind.
    """

    guesses: dict[int, dict[int, Hashable]] = field(default_factory=dict)


class TreeDrafter(Drafter):
    """Proposes the tokens that its proposers expect, as a tree where the call takes one, else as a chain.

    What proposers agree on is one node. A node's chance is learned from how often guesses of its kind were right before, in
    this row and in all; `Schedule.num_nodes` says how many of the likeliest are worth their time. All of it is known before the
    target draws, so that the output keeps its distribution.

    Args:
        proposers: the ways to guess.
        max_depth: the longest path.
        learned: how often guesses were right, by kind, kept by the caller; by default this drafter's own.
    """

    one_hot_proposals = True
    branches = True
    select, admit, learn = (to_each("proposers", name) for name in ("select", "admit", "learn"))

    def __init__(self, proposers: Sequence[Proposer], max_depth: int = 24, learned: dict[Hashable, list[float]] | None = None):
        self.forced = ForcedTokens()
        self.proposers, self.max_depth = [*proposers, self.forced], max_depth
        self.num_successors = max(proposer.num_successors for proposer in self.proposers)
        self.chances = Chances(self._prior, {} if learned is None else learned)

    def _prior(self, kinds: tuple[Kind, ...]) -> float:
        pairs = zip(self.proposers, kinds, strict=True)
        return max(proposer.prior(kind) for proposer, kind in pairs if kind is not None)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.vocab_size = sampler.vocab_size
        self.chances.forget_all_but([])  # another call: its rows are others
        self.grown: list[Growth] = []
        self.lengths: list[int] = []
        self.seen: tuple[list[list[int]], Tensor, Tensor] | None = None
        for proposer in self.proposers:
            proposer.begin(batch, self.vocab_size)

    def prefill(self, batch: Batch) -> None:
        for proposer in self.proposers:
            proposer.begin(batch, self.vocab_size)
            for lane, text in enumerate(batch.history):
                proposer.place_after(lane, text)

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        grown = self.grow(batch, num_tokens)
        counts = schedule.num_nodes(batch, [growth.chances for growth in grown])
        if not any(counts):
            return Draft.empty(batch)
        is_chain = all(row.depths[:n] == list(range(1, n + 1)) for row, n in zip(grown, counts, strict=True))
        if is_chain:  # it pays for no mask
            return Draft.of(batch, [growth.tokens[:n] for growth, n in zip(grown, counts, strict=True)])
        return draft_of(batch, grown, counts)

    def grow(self, batch: Batch, num_tokens: list[int]) -> list[Growth]:
        """The likeliest `num_tokens[b]` nodes of each row, from which the round learns whether they are proposed or not."""
        self._learn_successors()
        self.lengths = [len(text) for text in batch.history]
        self.forced.begin_round(batch)
        self.chances.forget_all_but(batch.rows)
        rooms = zip(num_tokens, batch.rooms, strict=True)
        self.grown = [self._grow(lane, batch, num, min(self.max_depth, room)) for lane, (num, room) in enumerate(rooms)]
        return self.grown

    def observe(self, batch: Batch, draft: Draft, logits: Tensor) -> None:
        if self.num_successors:
            successors = logits.topk(min(self.num_successors, logits.shape[2])).indices
            drafted = torch.cat([draft.num_tokens[:, None], draft.tokens], 1)
            # Looked at when the next draft is made: what the round accepted has been read in between.
            self.seen = [text[-1:] for text in batch.history], read_later(drafted), read_later(successors)

    def _learn_successors(self) -> None:
        if self.seen is None:
            return
        (newest, drafted, successors), self.seen = self.seen, None
        for first, (num, *nodes), found in zip(newest, drafted.tolist(), successors.numpy(), strict=True):
            tokens = [*first, *nodes[:num]] if first else []
            for proposer in self.proposers:
                if proposer.num_successors:
                    proposer.observe(tokens, found[: len(tokens), : proposer.num_successors])

    def rollback(self, batch: Batch) -> None:
        """Which guesses were right, on the way that the text took."""
        if not self.grown:  # nothing was asked for
            return
        for row, growth, length, text in zip(batch.rows, self.grown, self.lengths, batch.history, strict=True):
            node = -1
            for token in text[length:]:
                for guess, kind in growth.guesses.get(node, {}).items():
                    self.chances.add(row, kind, guess == token)
                children = range(node + 1, len(growth.tokens))
                found = (i for i in children if growth.parents[i] == node and growth.tokens[i] == token)
                node = next(found, len(growth.tokens))
        self.grown = []

    def _grow(self, lane: int, batch: Batch, num_nodes: int, max_depth: int) -> Growth:
        """The likeliest nodes first; without branches, only the likeliest after each."""
        growth, row = Growth(), batch.rows[lane]
        waiting: list[tuple] = []
        count = 0

        def reach(places: list, node: int, chance: float, level: int) -> None:
            nonlocal count
            kinds, after = self._children(places)
            growth.guesses[node] = kinds
            guesses = [(chance * self.chances.of(row, kind), token) for token, kind in kinds.items()]
            if not self.may_branch:
                guesses = [max(guesses, key=lambda guess: guess[0])] if guesses else []
            for own_chance, token in guesses:
                count += 1
                heappush(waiting, (-own_chance, count, token, node, level, after[token]))

        if num_nodes:
            places = [proposer.place_after(lane, batch.history[lane]) for proposer in self.proposers]
            reach(places, -1, 1.0, 1)
        while waiting and len(growth.tokens) < num_nodes:
            chance, _, token, parent, level, places = heappop(waiting)
            node = growth.add(token, parent, -chance)
            if level < max_depth and node + 1 < num_nodes:
                reach(self._places_after(places, token), node, -chance, level + 1)
        return growth

    def _children(self, places: list) -> tuple[dict[int, Hashable], dict[int, tuple[list, dict[int, object]]]]:
        """What may follow these places, one of each proposer: each token's kind, and where the proposers are after it."""
        kinds: dict[int, list] = {}
        after: dict[int, tuple[list, dict[int, object]]] = {}
        for i, (proposer, place) in enumerate(zip(self.proposers, places, strict=True)):
            if place is None:
                continue
            for kind, token, next_place in proposer.children(place):
                # the last place is that of `forced`
                if not 0 <= token < self.vocab_size or not self.forced.allows(places[-1], token):
                    continue
                if token not in kinds:
                    kinds[token], after[token] = [None] * len(places), (places, {})
                kinds[token][i], after[token][1][i] = kind, next_place
        return {token: tuple(kind) for token, kind in kinds.items()}, after

    def _places_after(self, after: tuple[list, dict[int, object]], token: int) -> list:
        places, known = after
        return [
            known[i] if i in known else None if place is None else proposer.follow(place, token)
            for i, (proposer, place) in enumerate(zip(self.proposers, places, strict=True))
        ]
