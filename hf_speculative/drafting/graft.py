"""A tree grafted onto another one."""

from __future__ import annotations

from ..types import Nodes


def united(own: Nodes, guessed: Nodes) -> tuple[Nodes, list[int | None]]:
    """All nodes of two trees that follow the same text, the likeliest first.

    What both have is one node, with the better of its two chances. No node has a better one than its parent, in either tree and
    so in both together: any number of the likeliest is a tree.

    Returns:
        The nodes, and which of `own` each is, `None` for one that was guessed only.
    """
    nodes, origins = Nodes(), list[int | None]()
    known: dict[tuple[int, int], int] = {}
    for tree, is_own in ((own, True), (guessed, False)):
        places: list[int] = []
        for i, (token, parent, chance) in enumerate(zip(tree.tokens, tree.parents, tree.chances, strict=True)):
            after = -1 if parent < 0 else places[parent]
            place = known.get((after, token))
            if place is None:
                place = known[after, token] = nodes.add(token, after, chance)
                origins.append(i if is_own else None)
            nodes.chances[place] = max(chance, nodes.chances[place])
            places.append(place)
    order = sorted(range(len(origins)), key=lambda i: -nodes.chances[i])  # stable: parents come first
    rank = {i: n for n, i in enumerate(order)}
    likeliest = Nodes()
    for i in order:
        likeliest.add(nodes.tokens[i], rank.get(nodes.parents[i], -1), nodes.chances[i])
    return likeliest, [origins[i] for i in order]
