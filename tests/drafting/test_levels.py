"""From levels of scored candidates to a tree: EAGLE-2's, as it is written down."""

import torch

from hf_speculative.drafting.levels import Levels
from tests.support import trees

VOCAB, TOP_K, DEPTH, NUM_NODES = 5, 3, 4, 9


def grown(tables, top_k=TOP_K, depth=DEPTH):
    """Levels whose scores are those of a table of prefixes for each row."""
    levels = Levels(top_k, torch.stack([table(()) for table in tables]).log()[:, None])
    for _ in range(depth - 1):
        width, tokens, tree = levels.expand()
        rows = []
        for table, own, parents in zip(tables, tokens.tolist(), tree.parents.tolist(), strict=True):
            rows.append(torch.stack([table(path) for path in trees.paths_of(own, parents)[-width:]]))
        levels.add(torch.stack(rows).log())
    return levels


def test_parents_come_first_where_all_are_equal():
    """A draft that is certain, one that has no idea, and one that has nothing to say."""
    certain = lambda prefix: torch.eye(VOCAB)[len(prefix)]  # noqa: E731
    uniform = lambda prefix: torch.full((VOCAB,), 1.0)  # noqa: E731, so that a child is as confident as its parent
    nothing = lambda prefix: torch.zeros(VOCAB)  # noqa: E731
    tokens, parents, confidences, _ = grown([certain, uniform, nothing]).best(12)
    assert (parents < torch.arange(12)).all()
    assert tokens[0, :DEPTH].tolist() == list(range(DEPTH)) and parents[0, :DEPTH].tolist() == [-1, 0, 1, 2]
    assert (confidences > -torch.inf).sum(1).tolist() == [DEPTH, 12, 0]
