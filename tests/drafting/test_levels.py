"""From levels of scored candidates to a tree: EAGLE-2's, as it is written down."""

import torch

from hf_speculative.drafting.levels import Levels
from tests.support import trees
from tests.support.branching import Table

VOCAB, TOP_K, DEPTH, NUM_NODES = 5, 3, 4, 9


def grown(tables, top_k=TOP_K, depth=DEPTH):
    """Levels whose scores are those of a table of prefixes for each row."""
    levels = Levels(top_k, torch.stack([table(()) for table in tables]).log()[:, None])
    for _ in range(depth - 1):
        width = levels.expand()
        tree, tokens = levels.expanded_tree, levels.expanded_tokens.tolist()
        rows = []
        for table, own, parents in zip(tables, tokens, tree.parents.tolist(), strict=True):
            rows.append(torch.stack([table(path) for path in trees.paths_of(own, parents)[-width:]]))
        levels.add(torch.stack(rows).log())
    return levels


def test_the_most_confident_nodes_are_proposed():
    tables = [Table(seed, VOCAB) for seed in range(6)]
    levels = grown(tables)
    tokens, parents, confidences, expanded_as = (values.tolist() for values in levels.best(NUM_NODES))
    for row, table in enumerate(tables):
        paths = trees.paths_of(tokens[row], parents[row])
        expected = trees.dynamic_tree(table, TOP_K, DEPTH, NUM_NODES)
        assert paths == list(expected)
        torch.testing.assert_close(torch.tensor(confidences[row]).exp(), torch.tensor(list(expected.values())))
        # What was fed to the draft is known again: the same token after the same path.
        fed = trees.paths_of(levels.expanded_tokens[row].tolist(), levels.expanded_tree.parents[row].tolist())
        assert all(
            number == len(fed) or path == fed[number] for path, number in zip(paths, expanded_as[row], strict=True)
        )
        assert all(expanded_as[row][parent] < len(fed) for parent in parents[row] if parent >= 0)
    assert len({tuple(row) for row in parents}) > 1


def test_parents_come_first_where_all_are_equal():
    """A draft that is certain, one that has no idea, and one that has nothing to say."""
    certain = lambda prefix: torch.eye(VOCAB)[len(prefix)]  # noqa: E731
    uniform = lambda prefix: torch.full((VOCAB,), 1.0)  # noqa: E731, so that a child is as confident as its parent
    nothing = lambda prefix: torch.zeros(VOCAB)  # noqa: E731
    tokens, parents, confidences, _ = grown([certain, uniform, nothing]).best(12)
    assert (parents < torch.arange(12)).all()
    assert tokens[0, :DEPTH].tolist() == list(range(DEPTH)) and parents[0, :DEPTH].tolist() == [-1, 0, 1, 2]
    assert (confidences > -torch.inf).sum(1).tolist() == [DEPTH, 12, 0]


def test_a_path_of_certain_tokens_is_a_chain():
    tables = [Table(0, VOCAB)]
    levels = grown(tables, top_k=1)
    tokens, parents, _, expanded_as = levels.best(NUM_NODES)
    assert parents.tolist() == [[-1, 0, 1, 2]] and expanded_as.tolist() == [[0, 1, 2, 3]]
    assert tokens.shape == (1, DEPTH)
