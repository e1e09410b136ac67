"""Dynamic trees of a drafter that scores a level at a time (EAGLE-2), and guesses that are merged into them."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf

import torch
from torch import Tensor
from torch.nn import functional

from ..interfaces import Guesses, Sampler, Schedule
from ..types import Batch, Draft, Nodes, Tree, uploaded
from .autoregressive import AutoregressiveDrafter
from .wrapped import WrappedDrafter

#: default numbers of candidates after a node, and of levels
DEFAULT_TOP_K, DEFAULT_DEPTH = 4, 5
#: the most guesses considered as nodes of a tree
MOST_GRAFTED = 32
#: the index of a node that a model was not fed: past all others
NOT_FED = 2**30
#: the prior ratio of kept to expected guesses that the drafter does not share, its weight in guesses, and decay a round
FIRST_TRUST, TRUST_WEIGHT, MEMORY = 0.5, 4.0, 0.97
#: the share of the difference that a round without a guess forgets
FORGIVENESS = 0.01


class DynamicTreeDrafter(WrappedDrafter):
    """Proposes the most confident nodes of a tree that grows by beams; the number of draft tokens is that of its nodes.

    Li et al. 2024, EAGLE-2 (arXiv 2406.16858), with any drafter that scores a level at a time: a draft model, a DFlash block.
    No chance is involved, so that it suits greedy and reproducible calls. Other sampled ones get the chain of the other drafter
    by default, for its distributions make block verification keep more; `rule="sampled"` takes trees there, too.

    It is that chain as well where another part of the call takes chains only, and where a schedule ends drafts early. So it is
    with a processor that has a memory of its own, which would have to be copied for each node.

    Args:
        drafter: scores the levels.
        top_k: candidates after each node, and nodes of each level that are expanded (EAGLE's and SGLang's `topk`).
        depth: the longest path: each level takes a pass of a draft model. Where the schedule says how deep a tree is to be
            (`Schedule.num_levels`), its word counts; `None`: chains where it says nothing.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, drafter: AutoregressiveDrafter, top_k: int = DEFAULT_TOP_K, depth: int | None = DEFAULT_DEPTH):
        for name, value in (("top_k", top_k), ("depth", depth)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}={value}` drafts nothing: give 1 or more.")
        super().__init__(drafter)
        self.autoregressive, self.top_k, self.depth = drafter, top_k, depth
        self.branches = drafter.scores_levels
        self.expanded_as: Tensor | None = None
        self.merged, self.is_merged = MergedTree(), False

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        batch.grows_levels = self.may_branch
        super().begin(batch, sampler)

    def branches_with(self, sampler: Sampler) -> bool:
        is_drawn = sampler.keeps_draft_probs and not sampler.one_hot_proposals
        return self.branches and sampler.drafts_trees and not is_drawn

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return self.propose_beside(batch, num_tokens, schedule, sampler)

    def propose_beside(
        self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler, guesses: Guesses | None = None
    ) -> Draft:
        """Guesses become nodes of the tree, or make the chain one, see `united`."""
        self.expanded_as, self.is_merged = None, False
        levels = schedule.num_levels(batch)
        if levels is None:
            levels = self.depth or 0
        rooms = [min(n, room) for n, room in zip(num_tokens, batch.rooms, strict=True)]
        # Whether the sampler takes trees may change where requests have samplers of their own.
        may_grow = self.may_branch and sampler.drafts_trees and not schedule.may_stop
        guessed = guesses([min(n, MOST_GRAFTED) for n in num_tokens]) if guesses is not None and may_grow else []
        is_joined = any(row.tokens for row in guessed)
        if not may_grow or not (levels or is_joined):
            return super().propose(batch, rooms, schedule, sampler)
        top_k, levels = (self.top_k, levels) if levels else (1, max(rooms))  # a chain, which guesses make a tree
        depth = max(self.autoregressive.limit(batch, [min(levels, room) for room in rooms]))
        if depth == 0:
            return Draft.empty(batch)
        scores = sampler.draft_scores(batch, self.autoregressive.step(batch, 0), 0)
        candidates = Levels(top_k, sampler.confidences(scores[:, None], 0))
        for ahead in range(1, depth):
            width, tokens, tree = candidates.expand()
            batch.put(tokens, tree=tree)
            end = tokens.shape[1]
            scores = sampler.level_scores(batch, self.autoregressive.level(batch, end, width), end - width + 1)
            candidates.add(sampler.confidences(scores, ahead))
        if is_joined:
            draft, self.expanded_as = self.merged.draft(batch, candidates, guessed, num_tokens, schedule)
            self.is_merged = True
            return draft
        tokens, parents, confidences, self.expanded_as = candidates.best(max(num_tokens))
        is_possible = confidences > -torch.inf  # by the processors
        limits = uploaded(num_tokens, tokens.device).minimum(is_possible.sum(1))
        if not schedule.chooses_nodes:
            return Draft(tokens, None, limits, parents, depth)
        # Read by the host, beside the one read of each round: how many nodes are worth their time.
        read = torch.cat([limits[:, None].double(), confidences.double().exp()], 1).tolist()
        counts = schedule.num_nodes(batch, [chances[: int(num)] for num, *chances in read])
        if not any(counts):
            self.expanded_as = None
            return Draft.empty(batch)
        end = max(counts)
        return Draft(tokens[:, :end], None, uploaded(counts, tokens.device), parents[:, :end], depth)

    def rollback(self, batch: Batch) -> None:
        if batch.path is not None and self.expanded_as is not None:
            if self.is_merged:
                self.merged.judge(batch.host_path or [])
            batch = as_fed(batch, self.expanded_as, self.merged.is_fed if self.is_merged else None)
        self.expanded_as, self.is_merged = None, False
        super().rollback(batch)


def draft_of(batch: Batch, nodes: Sequence[Nodes], counts: list[int]) -> Draft:
    """A tree of the first `counts[b]` nodes of each row."""
    draft = Draft.of(batch, [row.tokens[:n] for row, n in zip(nodes, counts, strict=True)])
    parents = [row.parents[:n] + [-1] * (draft.width - n) for row, n in zip(nodes, counts, strict=True)]
    depth = max(max(row.depths[:n], default=0) for row, n in zip(nodes, counts, strict=True))
    return replace(draft, parents=uploaded(parents, draft.tokens.device), depth=depth)


def united(own: Nodes, guessed: Nodes, trust: float = 1.0) -> tuple[Nodes, list[int | None]]:
    """All nodes of two trees that follow the same text, the likeliest first.

    What both have is one node, with the better of its two chances. No node has a better one than its parent, in either tree and
    so in both together: any number of the likeliest is a tree.

    Args:
        trust: what the chances of `guessed` are to be multiplied by, 1 at most.

    Returns:
        The nodes, and which of `own` each is, `None` for one that was guessed only.
    """
    nodes, origins = Nodes(), list[int | None]()
    known: dict[tuple[int, int], int] = {}
    for tree, is_own, weight in ((own, True, 1.0), (guessed, False, trust)):
        places: list[int] = []
        for i, (token, parent, chance) in enumerate(zip(tree.tokens, tree.parents, tree.chances, strict=True)):
            after = -1 if parent < 0 else places[parent]
            place = known.get((after, token))
            if place is None:
                place = known[after, token] = nodes.add(token, after, weight * chance)
                origins.append(i if is_own else None)
            nodes.chances[place] = max(weight * chance, nodes.chances[place])
            places.append(place)
    order = sorted(range(len(origins)), key=lambda i: -nodes.chances[i])  # stable: parents come first
    rank = {i: n for n, i in enumerate(order)}
    likeliest = Nodes()
    for i in order:
        likeliest.add(nodes.tokens[i], rank.get(nodes.parents[i], -1), nodes.chances[i])
    return likeliest, [origins[i] for i in order]


def as_fed(batch: Batch, nodes: Tensor, is_fed: list[list[bool]] | None = None) -> Batch:
    """A batch after a round, for a model that was fed other nodes than the target: node i as its own `nodes[:, i]`.

    Args:
        is_fed: the nodes that it was fed. By default all that others follow; the host does not ask whether it was fed the last
            of a path, which is fed again.
    """
    fed = copy.copy(batch)
    assert batch.path is not None and batch.host_path is not None
    rows = is_fed or [[node != path[-1] for node in range(nodes.shape[1])] if path else [] for path in batch.host_path]
    fed.host_path = [  # 0: whichever it was
        [0 if row[node] else NOT_FED for node in path] for row, path in zip(rows, batch.host_path, strict=True)
    ]
    fed.path = nodes.gather(1, batch.path[:, : max(path.count(0) for path in fed.host_path)])
    return fed


class Levels:
    """Candidates, a level at a time, and the tree of the most confident of them; all of it on the device.

    This is EAGLE-2's dynamic tree (Li et al. 2024, arXiv 2406.16858, section 4). Scores come from the drafter: a pass of a
    draft model for each level, or a block that is known at once.

    The confidence of a candidate is the product of the probabilities on its path. Of each level, the most confident are
    expanded: what may follow them is the next level. Nothing is left to chance, so that a draft of them is deterministic.

    Args:
        top_k: candidates after each node, and nodes of each level that are expanded.
        log_probs: `(batch, 1, vocab)` of what follows each row's newest token.

    Attributes:
        tokens: `(batch, m)` int64, all candidates so far.
        parents: `(batch, m)` int64, the expanded node that each follows, -1 for the row's newest token.
        confidences: `(batch, m)` in logs.
        expanded: `(batch, e)` int64, which candidates were expanded, parents first.
        depth: levels that were expanded.
    """

    def __init__(self, top_k: int, log_probs: Tensor):
        self.top_k, self.depth = top_k, 0
        self.confidences = log_probs.new_empty(len(log_probs), 0)
        self.tokens = self.parents = self.expanded = self.confidences.long()
        self.newest = log_probs.new_zeros(len(log_probs), 1)  # confidences of what the next candidates follow
        self.add(log_probs)

    def add(self, log_probs: Tensor) -> None:
        """The candidates of a level: what follows, by `log_probs (batch, width, vocab)`, each node that was expanded last."""
        own, tokens = log_probs.topk(min(self.top_k, log_probs.shape[2]))
        end = self.expanded.shape[1]
        parents = torch.arange(end - own.shape[1], end, device=tokens.device)[:, None].expand_as(tokens)
        self.first = self.tokens.shape[1]
        self.tokens = torch.cat([self.tokens, tokens.flatten(1)], 1)
        self.parents = torch.cat([self.parents, parents.flatten(1)], 1)
        self.confidences = torch.cat([self.confidences, (self.newest[..., None] + own).flatten(1)], 1)

    def expand(self) -> tuple[int, Tensor, Tree]:
        """The next level follows the most confident candidates of this one.

        Returns:
            How many they are; all that were expanded so far, `(batch, e)`; and the tree of those.
        """
        level = self.confidences[:, self.first :]
        self.newest, best = level.topk(min(self.top_k, level.shape[1]))
        self.expanded = torch.cat([self.expanded, self.first + best], 1)
        self.depth += 1
        tokens, parents = (values.gather(1, self.expanded) for values in (self.tokens, self.parents))
        return best.shape[1], tokens, Tree(parents, self.depth)

    def best(self, num_nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The most confident candidates of all levels, the most confident first.

        None is more confident than its parent, which comes first where they are equal: so each brings the path to it along.

        Returns:
            `(batch, n)` tokens, parents among them, confidences, and which of the expanded nodes each is, their number if none.
        """
        confidences, order = self.confidences.sort(dim=1, descending=True, stable=True)
        rank = order.argsort(1)
        after = self.parents.gather(1, order) + 1
        parents = functional.pad(rank.gather(1, self.expanded), (1, 0), value=-1).gather(1, after)
        num_expanded = self.expanded.shape[1]
        numbers = torch.arange(num_expanded, device=order.device).expand_as(self.expanded)
        expanded_as = torch.full_like(order, num_expanded).scatter_(1, rank.gather(1, self.expanded), numbers)
        found = self.tokens.gather(1, order), parents, confidences, expanded_as
        return tuple(values[:, :num_nodes] for values in found)  # type: ignore[return-value]


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
        if not any(map(any, self.chances)):  # a text may become predictable
            self.kept += FORGIVENESS * (FIRST_TRUST * self.promised - self.kept)
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
