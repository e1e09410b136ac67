"""Trees on the host: make drafts of them, and unite two."""

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..types import Batch, Draft, Nodes, uploaded

#: the index of a node that a model was not fed: past all others
NOT_FED = 2**30


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
